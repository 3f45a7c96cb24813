"""One rank's trainer: from the plan and a rank to training steps.

All ranks of the plan make an engine at the same time, and then call :meth:`Engine.train_step` with their
cuts of the same micro-batches. A step runs the stage's schedule, sums the gradients over all who hold the
same weights, agrees over all stages on loss, number of tokens and norm of the gradients in one all-reduce,
and updates.

Scale of the gradients. The loss of a step is the mean over the counted tokens of the global batch. Its sum
is what the head computes; backward starts with ``loss scale / (global batch x sequence length)``, so that
numbers stay in the range of 16 bit, and what the real number of tokens changes about that is put right with
the update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from typing import Any

import torch
import torch.distributed as dist

from tangram.job import Precision
from tangram.plan.schema import PlanDocument
from tangram.profiler.shard import DTYPES
from tangram.runtime.boundary import Interval
from tangram.runtime.chunks import chunk_sections
from tangram.runtime.clip import NormCounter, clip_factor
from tangram.runtime.executable import check_executable, check_zero_bubble
from tangram.runtime.groups import GroupMaker
from tangram.runtime.hooks import StepHooks, TaskKind
from tangram.runtime.micro_batch import IGNORED, MicroBatch
from tangram.runtime.models.stage import StageModule, build_runs
from tangram.runtime.optimizer import Optimizer
from tangram.runtime.pipeline import Pipeline, meet_neighbours
from tangram.runtime.runs import all_rows, stage_runs
from tangram.runtime.scaling import LossScaler
from tangram.runtime.schedule import interleaved, one_forward_one_backward, split_backwards
from tangram.runtime.settings import TrainSettings, learning_rate
from tangram.runtime.sharding import Sharding
from tangram.runtime.tied import TiedWeight


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a step; the same on all ranks.

    Attributes:
        step: Which, from 0.
        loss: Mean over the counted tokens of the global batch.
        tokens: How many these were.
        grad_norm: Norm of the gradient of that mean, over all weights, before clipping.
        lr: Learning rate.
        loss_scale: What the loss was multiplied by for backward.
        skipped: Whether gradients overflowed, and nothing was updated.
    """

    step: int
    loss: float
    tokens: int
    grad_norm: float
    lr: float
    loss_scale: float
    skipped: bool


class Engine:
    """Trains one rank's part of the model.

    Args:
        plan: The plan; it has passed the checks of plans.
        rank: Of this process. The default process group holds all ranks of the plan (none is needed for one).
        device: Where to compute.
        settings: How to train.
        hooks: Who looks on.
        build: Makes the stage module, on the meta device.

    Attributes:
        stage: The stage of this rank.
        runs: Its runs of atoms with the same degrees.
        module: All atoms of the stage, those of several chunks too.
        rows: Rows of a micro-batch of which this rank needs anything.
        steps: Steps done, skipped ones too.

    Raises:
        InputError: The plan asks for something that the runtime cannot do.
    """

    def __init__(
        self,
        plan: PlanDocument,
        rank: int,
        device: Any,
        settings: TrainSettings,
        hooks: StepHooks | None = None,
        *,
        build: Callable[..., Any] = build_runs,
    ) -> None:
        check_executable(plan)
        if settings.zero_bubble:
            check_zero_bubble(plan)
        # Of the whole process, which trains this one plan.
        tf32 = plan.job.precision is Precision.TF32
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        self._plan, self._settings = plan, settings
        self._device, self._hooks = device, hooks or StepHooks()
        self.stage = next(s for s in plan.stages if rank in {slot.rank for slot in s.ranks})
        maker = GroupMaker(rank)
        found = [stage_runs(plan, stage, maker) for stage in plan.stages]
        self.runs = next(runs for runs in found if runs)
        self._world = maker.make(range(plan.num_gpus))
        tied_groups = [(tied, maker.make(tied.ranks)) for tied in plan.tied_weight_groups]
        self.rows: Interval = all_rows(self.runs)
        self._chunks = self._build(build)
        units = {atom: unit for chunk in self._chunks for atom, unit in chunk.units.items()}
        self.module = self._chunks[0] if len(self._chunks) == 1 else StageModule(units)
        tied_name = self._tied_name()
        self._sharding = self._make_sharding(tied_name)
        self._optimizer = Optimizer(self._sharding.buckets, settings, offload=self.stage.offload_optimizer)
        self._tied: list[TiedWeight] = []
        elsewhere: set[str] = set()
        for tied, group in tied_groups:
            if group is not None and tied_name is not None:
                self._tied.append(TiedWeight(self._sharding, tied_name, self.stage.index, group))
                if tied.stages[0] != self.stage.index:
                    elsewhere.add(tied_name)
        self._norm = NormCounter(self._sharding, frozenset(elsewhere))
        fp16 = plan.job.loss_scaling == "dynamic"
        self._scaler = (
            LossScaler(settings.initial_loss_scale, settings.loss_scale_window) if fp16 else LossScaler()
        )
        self._pipeline = self._make_pipeline(rank)
        self.steps = 0
        self._updates = 0

    def micro_batch(self, ids: Any, labels: Any, sample_ids: Any) -> MicroBatch:
        """Cuts this rank's tokens out of its rows of a micro-batch; a stage of several runs takes all tokens.

        Args:
            ids: Token ids ``[rows, seq_len]`` of :attr:`rows`.
            labels: What each of them is to predict, already shifted; -100 is not counted. Same shape.
            sample_ids: Numbers of the samples, ``[rows]``; seeds of dropout.
        """
        tokens = torch.arange(self._plan.job.seq_len)
        if len(self.runs) == 1:
            tokens = torch.cat([tokens[start:stop] for start, stop in self.runs[0].context_tokens])
        ids, labels, sample_ids = (torch.as_tensor(given) for given in (ids, labels, sample_ids))
        assert ids.shape == labels.shape == (self.rows[1] - self.rows[0], self._plan.job.seq_len)
        parts = (ids[:, tokens], labels[:, tokens], sample_ids, tokens)
        return MicroBatch(*(part.to(self._device, non_blocking=True) for part in parts))

    def train_step(self, batches: Sequence[MicroBatch]) -> StepResult:
        """Trains on one global batch.

        Args:
            batches: This rank's cuts of all micro-batches of the step, in order.
        """
        pipeline = self._plan.pipelines[0]
        assert len(batches) == pipeline.num_micro_batches
        usual = float(pipeline.global_batch * self._plan.job.seq_len)
        scale = self._scaler.scale
        seed = scale / usual
        loss = self._pipeline.run([replace(batch, seed=seed) for batch in batches], seed)
        self._hooks.begin(TaskKind.STEP, None)
        self._sharding.reduce()
        for tied in self._tied:
            tied.add_up()
        self._hooks.end(TaskKind.STEP, None)  # what follows waits for the slowest stage
        loss_sum, tokens, squares = self._agree(loss, batches)
        self._hooks.begin(TaskKind.STEP, None)
        factor = usual / (max(tokens, 1.0) * scale)
        norm = sqrt(squares) * factor
        good = isfinite(norm)
        rate = learning_rate(self._settings, self._updates)
        if good:
            self._optimizer.step(rate, factor * clip_factor(norm, self._settings.max_grad_norm))
            self._sharding.spread()
            self._updates += 1
        self._sharding.clear()
        self._scaler.update(overflow=not good)
        self._hooks.end(TaskKind.STEP, None)
        self.steps += 1
        return StepResult(
            step=self.steps - 1,
            loss=loss_sum / max(tokens, 1.0),
            tokens=int(tokens),
            grad_norm=norm,
            lr=rate,
            loss_scale=scale,
            skipped=not good,
        )

    def _agree(self, loss: Any, batches: Sequence[MicroBatch]) -> tuple[float, float, float]:
        """Sums over all ranks: the loss, its tokens, and the squares of all gradients."""
        total = torch.zeros(3, dtype=torch.float64, device=self._device)
        if loss is not None and self.runs[-1].is_first_of_tp:  # ranks of a tp group have the same loss
            total[0] = loss
            for batch in batches:
                total[1] += (self.module.counted_labels(batch) != IGNORED).sum()
        squares = self._norm.squares()
        if squares is not None:
            total[2] = squares
        assert self._world is not None
        if self._world.size > 1:
            dist.all_reduce(total, group=self._world.handle)
        loss_sum, tokens, sum_of_squares = total.tolist()
        return loss_sum, tokens, sum_of_squares

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """All weights of this rank's part of the stage are whole inside; what is written into them counts."""
        with self._sharding.gathered(), torch.no_grad():
            yield
        self._optimizer.take_over()

    def state_dict(self) -> dict[str, Any]:
        """Returns what this rank needs to go on from here with the same plan."""
        return {
            "steps": self.steps,
            "updates": self._updates,
            "scaler": (self._scaler.scale, self._scaler.good_steps),
            "weights": [bucket.own_weights for bucket in self._sharding.buckets],
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what :meth:`state_dict` gave on the same rank of the same plan; all ranks do so together."""
        self.steps, self._updates = state["steps"], state["updates"]
        self._scaler.scale, self._scaler.good_steps = state["scaler"]
        for bucket, weights in zip(self._sharding.buckets, state["weights"], strict=True):
            bucket.own_weights.copy_(weights)
        self._optimizer.load_state_dict(state["optimizer"])
        self._sharding.spread()

    def _build(self, build: Callable[..., Any]) -> list[StageModule]:
        """The stage module, or those of its chunks, on the meta device."""
        plan, seed = self._plan, self._settings.seed
        sections = chunk_sections(plan, self._settings.virtual_stages)[self.stage.index]
        if len(sections) == 1:
            return [build(plan, self.stage, self.runs, seed=seed)]
        (run,) = self.runs
        return [build(plan, part, [replace(run, atoms=range(*part.atoms))], seed=seed) for part in sections]

    def _tied_name(self) -> str | None:
        """The matrix that embedding and head share, on a stage that has it: the first with its rows."""
        if not self._plan.model.tied_embeddings:
            return None
        rows, ends = self._plan.model.padded_vocab_size, (0, self._plan.num_atoms - 1)
        found = (
            parameter.name
            for parameter in self.module.local_parameters()
            if parameter.atom in ends and parameter.decays and parameter.parts[0].full_shape[0] == rows
        )
        return next(found, None)

    def _make_sharding(self, tied_name: str | None) -> Sharding:
        """Gives the stage's atoms memory and takes them over one by one, so that never all are whole."""
        job, stage = self._plan.job, self.stage
        half = job.optimizer.gradient_bytes == 2
        sharding = Sharding(
            DTYPES[job.precision] if half else torch.float32,
            reshard_after_forward=stage.reshard_after_forward,
            shared=tied_name if stage.has_embedding and stage.has_head else None,
        )
        run_of = {atom: run for run in self.runs for atom in run.atoms}
        for atom, unit in self.module.units.items():
            unit.materialise(self._device)
            own = [p for p in self.module.local_parameters() if p.atom == atom]
            run = run_of.get(atom, self.runs[0])  # a stage of several chunks has one run, and other atoms
            sharding.add(atom, unit, own, run.groups, run.degrees.zero)
        return sharding

    def _make_pipeline(self, rank: int) -> Pipeline:
        pipeline, index = self._plan.pipelines[0], self.stage.index
        num_stages, num_chunks = len(pipeline.stages), len(self._chunks)
        dtype = DTYPES[self._plan.job.precision]
        if num_chunks > 1:
            order = interleaved(num_stages, num_chunks, pipeline.num_micro_batches)[index]
        else:
            order = one_forward_one_backward(pipeline.schedule.in_flight[index], pipeline.num_micro_batches)
        if self._settings.zero_bubble:
            order = split_backwards(order, index)
        ring = num_chunks > 1
        return Pipeline(
            self._chunks,
            meet_neighbours(self._plan, index, rank, dtype, self._device, in_a_ring=ring),
            order,
            is_first=index == 0,
            is_last=index == num_stages - 1,
            overlap=pipeline.schedule.overlap_p2p,
            hooks=self._hooks,
            before_backward=self._sharding.begin_backward,
            after_backward=self._sharding.end_backward,
        )
