"""The version, as a constant: reading it from the installed distribution would scan all packages."""

VERSION = "0.1.0"
