"""Makes the helper modules beside the tests importable, and sets hypothesis up."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

for folder in sorted(p for p in Path(__file__).parent.iterdir() if p.is_dir()):
    sys.path.append(str(folder))

# How long an example takes says how busy the machine is, so no test asks for it.
settings.register_profile("tangram", deadline=None)
settings.load_profile("tangram")
