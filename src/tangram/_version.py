"""The version, as a constant: reading it from the installed distribution would cost a scan of all packages."""

VERSION = "0.1.0"
