"""Makes ``python -m tangram`` the same as ``tangram``."""

from __future__ import annotations

import sys

from tangram.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
