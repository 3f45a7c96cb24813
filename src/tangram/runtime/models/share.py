"""What a rank builds of a stage: the model, its groups, its tokens, and how it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tangram.errors import InputError
from tangram.model.spec import ModelSpec
from tangram.plan.schema import LayerConfig, PlanDocument, StageSection
from tangram.profiler.shard import DTYPES
from tangram.runtime.boundary import Interval, context_share
from tangram.runtime.groups import StageGroups
from tangram.runtime.micro_batch import MicroBatch
from tangram.runtime.models.hyperparameters import Hyperparameters, parse_hyperparameters
from tangram.runtime.models.names import Names, names_of


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one rank of a stage (or of a run of its layers with degrees of their own).

    Attributes:
        model: The whole model.
        names: Of its tensors.
        hyper: What shapes do not tell.
        groups: Whom this rank talks to.
        sequence_parallel: Whether hidden states are split over tp along the tokens.
        seq_len: Tokens of a sample.
        tokens: Those of each cp index, as they lie.
        swaps_heads: Whether cp exchanges heads for tokens, instead of gathering keys and values.
        unfused: Whether scores are stored, as on GPUs without flash attention.
        vocab_rows: Rows of embedding and head, padded.
        dtype: Of weights and activations.
        seed: Of initial weights and dropout.
    """

    model: ModelSpec
    names: Names
    hyper: Hyperparameters
    groups: StageGroups
    sequence_parallel: bool
    seq_len: int
    tokens: tuple[tuple[Interval, ...], ...]
    swaps_heads: bool
    unfused: bool
    vocab_rows: int
    dtype: Any
    seed: int

    @property
    def tp(self) -> int:
        """Tensor-parallel degree."""
        return self.groups.tp.size

    @property
    def own_tokens(self) -> tuple[Interval, ...]:
        """The tokens of this rank's cp index."""
        return self.tokens[self.groups.cp.index]

    @property
    def partial(self) -> str | None:
        """Over which axis gradients of weights that tp does not split are sums of shares."""
        return "tp" if self.sequence_parallel else None

    def cut(self, width: int, what: str) -> Interval:
        """Returns this tp rank's interval of a width.

        Raises:
            InputError: tp does not divide it.
        """
        if width % self.tp:
            raise InputError(f"tp {self.tp} does not divide {width} ({what})", where=self.model.name)
        size = width // self.tp
        return self.groups.tp.index * size, (self.groups.tp.index + 1) * size


def share_of(
    plan: PlanDocument,
    stage: StageSection,
    groups: StageGroups,
    *,
    seed: int = 0,
    dtype: Any = None,
    run: StageSection | LayerConfig | None = None,
) -> Share:
    """Returns the share of a rank.

    Args:
        plan: The plan.
        stage: The stage.
        groups: Of the rank in it (or in the run).
        seed: Of initial weights and dropout.
        dtype: Of weights and activations; by default that of the job.
        run: The run of layers, where the stage's layers differ.

    Raises:
        InputError: The runtime has no such model, or not this precision.
    """
    model = plan.model.to_spec()
    if dtype is None and plan.job.precision not in DTYPES:
        raise InputError(
            f"precision {plan.job.precision} cannot be run yet",
            where="job.precision",
            hint=f"legal: {', '.join(DTYPES)}",
        )
    degrees = stage if run is None else run
    zigzag = stage.cp_layout == "zigzag"
    return Share(
        model=model,
        names=names_of(model),
        hyper=parse_hyperparameters(plan.model.hyperparameters, model),
        groups=groups,
        sequence_parallel=degrees.sequence_parallel and degrees.tp > 1,
        seq_len=plan.job.seq_len,
        tokens=tuple(
            context_share(plan.job.seq_len, degrees.cp, index, zigzag=zigzag) for index in range(degrees.cp)
        ),
        swaps_heads=stage.cp_exchange == "a2a" and degrees.cp > 1,
        unfused=stage.attention_kernel == "unfused",
        vocab_rows=plan.model.padded_vocab_size,
        dtype=dtype or DTYPES[plan.job.precision],
        seed=seed,
    )


@dataclass(slots=True)
class Context:
    """A micro-batch on its way through a stage: what all atoms see of it.

    Attributes:
        batch: The micro-batch.
        made: What atoms made of it for others, by key.
    """

    batch: MicroBatch
    made: dict[Any, Any] = field(default_factory=dict)

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        """Returns what ``make`` gives, which is called for the first of equal keys only."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def own_positions(self, share: Share) -> Any:
        """Positions of the tokens of this rank's hidden states."""
        positions = self.batch.positions
        if not share.sequence_parallel:
            return positions
        return positions.chunk(share.tp)[share.groups.tp.index]
