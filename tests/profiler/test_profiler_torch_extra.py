"""Without PyTorch there is one clear error."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tangram.errors import InputError
from tangram.profiler.torch_extra import require_torch


def torch_of(version: str) -> ModuleType:
    module = ModuleType("torch")
    module.__version__ = version  # type: ignore[attr-defined]
    return module


def test_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match="PyTorch is not installed") as caught:
        require_torch()
    assert caught.value.hint == "pip install 'tangram-llm[train]'"


def test_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    class Broken:
        @staticmethod
        def find_spec(name: str, *rest: object) -> None:
            if name == "torch":
                raise ImportError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(sys, "meta_path", [Broken, *sys.meta_path])
    with pytest.raises(InputError, match="cannot be imported: libcudart"):
        require_torch()


@pytest.mark.parametrize(("version", "legal"), [("2.4.1+cu121", False), ("2.5.0", True), ("3.0", True)])
def test_too_old(monkeypatch: pytest.MonkeyPatch, version: str, legal: bool) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_of(version))
    if legal:
        require_torch()
        return
    with pytest.raises(InputError, match=r"PyTorch 2\.4\.1\+cu121 is older than 2\.5"):
        require_torch()
