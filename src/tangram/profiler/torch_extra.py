"""Whether torch is there: it comes with the extra ``train``, and only profiling and running need it."""

from __future__ import annotations

from importlib.util import find_spec

from tangram.errors import InputError

INSTALL = "pip install 'tangram-llm[train]'"
OLDEST = (2, 5)
"""scaled_dot_product_attention has ``enable_gqa`` from 2.5 on."""
TENSOR_CORES = (8, 0)
"""Compute capability from which NVIDIA GPUs have bf16 and tf32 (Ampere)."""


def require_safetensors(where: str) -> None:
    """Makes sure that checkpoints can be read and written.

    Args:
        where: The option that needs it.

    Raises:
        InputError: The library is missing.
    """
    if find_spec("safetensors") is None:
        raise InputError("safetensors is not installed", where=where, hint=INSTALL)


def require_torch(where: str = "tangram profile") -> None:
    """Makes sure that torch can be imported, and is new enough.

    Args:
        where: The command that needs it.

    Raises:
        InputError: It is missing, broken or too old.
    """
    try:
        import torch
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        what = "is not installed" if missing else f"cannot be imported: {error}"
        raise InputError(f"PyTorch {what}", where=where, hint=INSTALL) from None
    numbers = tuple(int(word) for word in torch.__version__.split(".")[:2])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise InputError(f"PyTorch {torch.__version__} is older than {oldest}", where=where, hint=INSTALL)
