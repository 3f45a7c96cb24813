"""An executor that shares nothing with the simulator but the description of a pipeline.

It walks a clock over the moments at which something ends, and at each moment starts whatever the rules allow:

* a stage that is free runs a forward while it holds fewer micro-batches than its window and forwards are
  left, else a backward; it waits until the input of that task is there (it has no order of tasks in advance);
* a tensor that was made joins a queue, one at a time, at equal moments by (stage, micro-batch);
* a queued transfer starts when nothing before it in the queue wants anything that it wants, and all of that
  is free.

It is slow on purpose: every rule is one scan over everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tangram.simulate.pipeline import SimPipeline


@dataclass
class NaiveRun:
    """Starts and ends by ("F" | "B" | "SF" | "SB", stage, micro-batch); step ends by ("step", stage, 0)."""

    pipeline: SimPipeline
    starts: dict[tuple[str, int, int], int] = field(default_factory=dict)
    ends: dict[tuple[str, int, int], int] = field(default_factory=dict)

    @property
    def iteration_ns(self) -> int:
        return max(end for (kind, _, _), end in self.ends.items() if kind == "step")


def naive_run(pipeline: SimPipeline) -> NaiveRun:
    return _Clock(pipeline).run()


class _Clock:
    def __init__(self, pipeline: SimPipeline) -> None:
        self.p = pipeline
        self.out = NaiveRun(pipeline)
        self.now = 0
        self.moments: set[int] = {0}
        self.queue: list[tuple[str, int, int]] = []
        self.joined: set[tuple[str, int, int]] = set()
        self.released: dict[str, int] = {}  # resource -> when it is free

    def run(self) -> NaiveRun:
        while True:
            while self.start_something() or self.join_one():
                pass
            later = [t for t in self.moments if t > self.now]
            if not later:
                break
            self.now = min(later)
        s, m = len(self.p.stages), self.p.num_micro_batches
        assert len(self.out.ends) == s * (2 * m + 1) + 2 * (s - 1) * m, "something never ran"
        return self.out

    def begin(self, key: tuple[str, int, int], duration: int) -> None:
        assert key not in self.out.starts
        self.out.starts[key] = self.now
        self.out.ends[key] = self.now + duration
        self.moments.add(self.now + duration)

    def done(self, key: tuple[str, int, int]) -> bool:
        return key in self.out.ends and self.out.ends[key] <= self.now

    def start_something(self) -> bool:
        return any(self.start_compute(i) for i in range(len(self.p.stages))) or self.start_transfer()

    def start_compute(self, i: int) -> bool:
        mine = [key for key in self.out.starts if key[1] == i and key[0] in ("F", "B", "step")]
        if not all(self.out.ends[key] <= self.now for key in mine):
            return False
        if self.p.blocking_p2p and not all(self.done(key) for key in self.sends_of(mine)):
            return False
        stage, m, last = self.p.stages[i], self.p.num_micro_batches, len(self.p.stages) - 1
        forwards = sum(1 for kind, _, _ in mine if kind == "F")
        backwards = sum(1 for kind, _, _ in mine if kind == "B")
        if backwards == m:
            if ("step", i, 0) in self.out.starts:
                return False
            self.begin(("step", i, 0), stage.step_ns)
        elif forwards < m and forwards - backwards < stage.in_flight:
            if i > 0 and not self.done(("SF", i - 1, forwards)):
                return False
            self.begin(("F", i, forwards), stage.forward_ns)
        else:
            if i < last and not self.done(("SB", i + 1, backwards)):
                return False
            self.begin(("B", i, backwards), stage.backward_ns)
        return True

    def sends_of(self, keys: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
        last = len(self.p.stages) - 1
        forward = [("SF", i, k) for kind, i, k in keys if kind == "F" and i < last]
        return forward + [("SB", i, k) for kind, i, k in keys if kind == "B" and i > 0]

    def wants(self, key: tuple[str, int, int]) -> set[str]:
        kind, i, _ = key
        if kind == "SF":
            return {f"forward of {i}", *("shared " + r for r in self.p.edges[i].forward_resources)}
        return {f"backward of {i - 1}", *("shared " + r for r in self.p.edges[i - 1].backward_resources)}

    def start_transfer(self) -> bool:
        for position, key in enumerate(self.queue):
            wants = self.wants(key)
            if any(wants & self.wants(before) for before in self.queue[:position]):
                continue
            if any(self.released.get(name, 0) > self.now for name in wants):
                continue
            kind, i, _ = key
            edge = self.p.edges[i] if kind == "SF" else self.p.edges[i - 1]
            occupancy = edge.forward_occupancy_ns if kind == "SF" else edge.backward_occupancy_ns
            for name in wants:
                self.released[name] = self.now + occupancy
            self.moments.add(self.now + occupancy)
            self.begin(key, occupancy + edge.latency_ns)
            self.queue.pop(position)
            return True
        return False

    def join_one(self) -> bool:
        computed = [key for key, end in self.out.ends.items() if end <= self.now and key[0] in ("F", "B")]
        fresh = [key for key in self.sends_of(computed) if key not in self.joined]
        if not fresh:
            return False
        first = min(fresh, key=lambda key: key[1:])
        self.joined.add(first)
        self.queue.append(first)
        return True
