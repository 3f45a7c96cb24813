"""Makes the helper modules beside the tests importable."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in sorted(p for p in Path(__file__).parent.iterdir() if p.is_dir()):
    sys.path.append(str(folder))
