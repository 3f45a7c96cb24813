"""Fully sharded data parallelism and nothing else: every stage shards everything over all of its GPUs.

It is what many people run (PyTorch's FSDP, DeepSpeed's ZeRO-3), and the worked example of
docs/adding-a-parallelizer.md. On a cluster of mixed GPUs the composition makes a pipeline of such stages.
As few layers are recomputed as make a stage fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from tangram import Capabilities
from tangram.cost.configs import legal_configs
from tangram.cost.types import StageConfig
from tangram.job import Recompute
from tangram.parallelizers.invariants import recost
from tangram.parallelizers.protocols import SlicePlan, SliceRequest, StageChoice


class FullyShardedPlanner:
    """Plans a slice as one stage: dp over all GPUs, ZeRO stage 3."""

    name = "fully-sharded"
    capabilities = Capabilities(seconds_per_query=0.005)

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        """Returns the fastest plan that fits, or none."""
        stages = [least_recomputed(request, config) for config in configs(request)]
        fitting = [stage for stage in stages if stage is not None]
        fastest = min(fitting, key=lambda s: recost(request, s, request.in_flight).time_s, default=None)
        return [] if fastest is None else [SlicePlan((fastest,))]


def configs(request: SliceRequest) -> list[StageConfig]:
    """Returns the configurations to try: none that the model, or the user, rules out is among them."""
    num_gpus = request.portion.num_gpus
    legal = legal_configs(request.model, request.portion, request.micro_batch, request.job)
    return [c for c in legal if c.dp == num_gpus and c.ep == 1 and (c.zero == 3 or num_gpus == 1)]


def least_recomputed(request: SliceRequest, config: StageConfig) -> StageChoice | None:
    """Returns the stage with the fewest recomputed layers that fits, None where none does."""
    inner = [place for place, atom in enumerate(request.slice) if atom.layer_idxs]
    numbers = {
        None: range(len(inner) + 1),
        Recompute.NONE: range(1),
        Recompute.SELECTIVE: range(1),
        Recompute.FULL: range(len(inner), len(inner) + 1),
    }[request.job.pins.recompute]

    def stage(number: int) -> StageChoice:
        marks = tuple(place in inner[:number] for place in range(len(request.slice)))
        return StageChoice(request.start, request.stop, request.portion, config, marks)

    def fits(number: int) -> bool:
        cost = recost(request, stage(number), request.in_flight)
        return cost.peak_bytes <= cost.capacity_bytes

    if fits(numbers[0]):
        return stage(numbers[0])
    # The first recomputed layer costs workspace; from there on every further one frees memory.
    more = numbers[1:]
    if not more or not fits(more[-1]):
        return None
    return stage(more[bisect_left(more, True, key=fits)])
