"""Faults put into the runtime on purpose; docs/testing.md lists them. A fault is put in on all ranks.

As in ``tests/test_deliberate_faults.py`` a fault replaces one piece of text in one function. The text has
to occur exactly once, so this list cannot outlive the code that it is about.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

ROOM = "tangram.runtime"


@dataclass(frozen=True)
class RuntimeFault:
    """A fault, and the plan that shows it.

    Attributes:
        name: In a few words; docs/testing.md has the same.
        place: Module below ``tangram.runtime`` and the function in it.
        old, new: What is replaced by what.
        plan: Name of a plan of :data:`fault_plans.PLANS`.
    """

    name: str
    place: str
    old: str
    new: str
    plan: str


FAULTS = (
    # A dropped layer.
    RuntimeFault(
        "a stage leaves out its second atom",
        "models.stage:StageModule.forward",
        "for atom in section.atoms:",
        "for atom in section.atoms[:1] + section.atoms[2:]:",
        "tensor, data",
    ),
    # A swapped slice at a cut.
    RuntimeFault(
        "a rank sends its first rows, whichever are wanted",
        "boundary:_link",
        "sent.append(Block(_shift(rows, -held.rows[0])",
        "sent.append(Block(_shift(rows, -rows[0])",
        "uneven rows",
    ),
    RuntimeFault(
        "the two chunks of a zigzag change places on arrival",
        "boundary:_link",
        "received.append(Block(_shift(rows, -wanted.rows[0])",
        "received.insert(0, Block(_shift(rows, -wanted.rows[0])",
        "context, data",
    ),
    RuntimeFault(
        "a backward takes the newest micro-batch",
        "pipeline:Pipeline._backward",
        "self._held.pop((action.chunk, k))",
        "self._held.pop(max(self._held))",
        "tensor, data",
    ),
    # An unscaled gradient.
    RuntimeFault(
        "gradients are of the sum of the losses, not of their mean",
        "engine:Engine.train_step",
        "factor = usual / (max(tokens, 1.0) * scale)",
        "factor = usual",
        "tensor, data",
    ),
    RuntimeFault(
        "labels that do not count are counted",
        "engine:Engine._agree",
        "(self.module.counted_labels(batch) != IGNORED).sum()",
        "self.module.counted_labels(batch).numel()",
        "tensor, data",
    ),
    RuntimeFault(
        "replicas average their gradients",
        "buckets:Bucket.reduce",
        "self._has_started, self._work = False, None",
        "self._has_started, self._work = self.own_gradients.div_(self.replicas.size) is None, None",
        "uneven rows",
    ),
    RuntimeFault(
        "shares of norms are not summed over tp",
        "sharding:Sharding._add_partial",
        "slot.parameter.partial_over == axis",
        "slot.parameter.partial_over == 'nothing'",
        "tensor, data",
    ),
    RuntimeFault(
        "the gradient of a shard forgets earlier micro-batches",
        "buckets:Bucket.collect",
        "self.own_gradients += self._scattered(whole)",
        "self.own_gradients = self._scattered(whole)",
        "sharded weights",
    ),
    RuntimeFault(
        "the norm counts every replica",
        "clip:NormCounter.__init__",
        "bucket.replicas.index or name in elsewhere",
        "name in elsewhere",
        "uneven rows",
    ),
    # A sample used twice.
    RuntimeFault(
        "all dp ranks work on the first rows",
        "boundary:Layout._rows",
        "return list(pairwise(accumulate(self.rows_per_dp, initial=0)))",
        "return [(0, self.rows_per_dp[0])] * len(self.rows_per_dp)",
        "sharded weights",
    ),
    RuntimeFault(
        "all cp ranks work on the same tokens",
        "engine:Engine.micro_batch",
        "self.runs[0].context_tokens",
        "[(0, len(tokens) // self.stage.cp)]",
        "context, data",
    ),
    # Copies that go apart.
    RuntimeFault(
        "a tied matrix gets the gradient of its own stage only",
        "tied:TiedWeight.add_up",
        "own += data",
        "pass",
        "tied ends",
    ),
    RuntimeFault(
        "experts are summed over ranks that hold others",
        "sharding:Sharding._bucket",
        "groups.expert_replicas if of_experts else groups.replicas",
        "groups.replicas",
        "experts",
    ),
)


def fault_of(name: str) -> RuntimeFault:
    """The fault of a name."""
    return next(fault for fault in FAULTS if fault.name == name)


@contextmanager
def put_in(fault: RuntimeFault) -> Iterator[None]:
    """Changes the function itself for a while, so that everybody who imported it has the fault."""
    module, _, path = fault.place.partition(":")
    function: Any = importlib.import_module(f"{ROOM}.{module}")
    for attribute in path.split("."):
        function = getattr(function, attribute)
    assert isinstance(function, FunctionType)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(fault.old) == 1, f"{fault.name}: the code has changed, and this fault with it"
    namespace = dict(function.__globals__)
    changed = source.replace(fault.old, fault.new)
    exec("from __future__ import annotations\n" + changed, namespace)
    right = function.__code__
    function.__code__ = namespace[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = right
