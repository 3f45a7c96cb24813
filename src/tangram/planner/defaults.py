"""What is assumed of a job when the user does not say, each with its reason."""

from __future__ import annotations

from tangram.cluster.spec import Assumption
from tangram.model.spec import ModelSpec, PositionKind

DEFAULT_GLOBAL_BATCH = 512
DEFAULT_SEQ_LEN = 4096


def default_global_batch() -> tuple[int, Assumption]:
    """Returns the global batch when none is given."""
    reason = "not given; 512 samples fill a pipeline, and are usual for models of this size (--global-batch)"
    return DEFAULT_GLOBAL_BATCH, Assumption(f"global batch {DEFAULT_GLOBAL_BATCH}", reason)


def default_seq_len(model: ModelSpec) -> tuple[int, Assumption]:
    """Returns the sequence length when none is given: the model's own, at most 4096."""
    if model.max_positions <= DEFAULT_SEQ_LEN:
        kind = "learned positions" if model.position is PositionKind.LEARNED else "positions"
        reason = f"not given; the model has {model.max_positions} {kind} (--seq-len)"
        return model.max_positions, Assumption(f"sequence length {model.max_positions}", reason)
    reason = f"not given; a usual length below the model's {model.max_positions} positions (--seq-len)"
    return DEFAULT_SEQ_LEN, Assumption(f"sequence length {DEFAULT_SEQ_LEN}", reason)
