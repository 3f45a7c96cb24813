"""Skips the test module that imports this, before anything of torch, where PyTorch is missing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'tangram-llm[train]')")

torch.set_num_threads(1)  # what the tests compute is too small to share
