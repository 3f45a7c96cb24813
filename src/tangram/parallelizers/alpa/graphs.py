"""From the parts of a model to the einsums that :mod:`tangram.parallelizers.alpa.einsums` tabulates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tangram.cost.attention import OUT_LAUNCH, QKV_LAUNCH
from tangram.cost.ends import EMBEDDING_LAUNCH, HEAD_LAUNCH
from tangram.cost.feed_forward import DOWN_LAUNCH, UP_LAUNCH, activation_elements
from tangram.cost.moe import PERMUTE_ELEMENTS
from tangram.job import Job
from tangram.model.atoms import AtomPart, Part
from tangram.model.params import feed_forward_params, part_params
from tangram.model.spec import FeedForwardSpec, LayerSpec, ModelSpec, MoeSpec
from tangram.parallelizers.alpa.einsums import PADDED, Graph, Kind, Operator, Read


def graph_of(model: ModelSpec, parts: Sequence[AtomPart], micro_batch: int, job: Job) -> Graph:
    """Returns the einsums of a run of parts.

    A run that begins inside of a block (atoms may be as small as a part) lacks the tensors that come from in
    front of it.
    """
    builder = _Builder(model, micro_batch, job)
    for part in parts:
        builder.add(part)
    return builder.finished()


@dataclass(slots=True)
class _Builder:
    """Strings operators together.

    Attributes:
        stream: Operator that wrote the residual stream.
        last: Operator that wrote what the next part of the block reads.
        waiting: What attention beside a feed-forward block wrote; both are added up together.
    """

    model: ModelSpec
    micro_batch: int
    job: Job
    operators: list[Operator] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    entry: int | None = None
    stream: int | None = None
    last: int | None = None
    waiting: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sizes.update(b=self.micro_batch, s=self.job.seq_len, h=self.model.hidden_size)

    @property
    def tokens(self) -> float:
        """Of the micro-batch."""
        return float(self.micro_batch * self.job.seq_len)

    def add(self, part: AtomPart) -> None:
        """Adds the operators of one part."""
        if part.part is Part.EMBEDDING:
            self._embedding()
            return
        if part.part in (Part.QKV, Part.UP, Part.MOE, Part.HEAD) and self.stream is None:
            self.stream = self.entry = self._residual(())
        if part.part is Part.HEAD:
            self._head()
            return
        assert part.layer_idx is not None
        layer = self.model.layers[part.layer_idx]
        params = float(part_params(self.model, part.layer_idx, part.part).total)
        if part.part in (Part.QKV, Part.CORE, Part.OUT):
            self._attention(part.part, layer, params)
        elif part.part is Part.MOE:
            self._mixture(layer, float(part_params(self.model, part.layer_idx, part.part).expert))
        else:
            assert isinstance(layer.feed_forward, FeedForwardSpec)
            self._feed_forward(part.part, layer.feed_forward, params)

    def finished(self) -> Graph:
        """Returns the graph."""
        ends = self.stream is not None and self.stream == len(self.operators) - 1
        return Graph(tuple(self.operators), self.sizes, self.entry, self.stream if ends else None)

    def _put(self, operator: Operator) -> int:
        self.operators.append(operator)
        return len(self.operators) - 1

    def _read(self, producer: int | None, indices: str, width: float | None = None) -> Read:
        return Read(producer, indices, self.tokens * (self.model.hidden_size if width is None else width))

    def _residual(self, reads: tuple[Read, ...]) -> int:
        elements = self.tokens * self.model.hidden_size
        return self._put(Operator("stream", Kind.STREAM, "bsh", reads, "bsh", elements))

    def _add(self, name: str, block: Sequence[int]) -> None:
        """Adds the outputs of blocks to the residual stream."""
        reads = [self._read(producer, "bsh") for producer in (self.stream, *self.waiting, *block)]
        elements = self.tokens * self.model.hidden_size
        passes = 1.0 + len(reads)
        added = Operator(name, Kind.STREAM, "bsh", tuple(reads), "bsh", elements, write_passes=passes)
        self.stream = self.last = self._put(added)
        self.waiting = []

    def _embedding(self) -> None:
        hidden = self.model.hidden_size
        self.sizes["v"] = PADDED
        rows = self._put(
            Operator(
                "embedding",
                Kind.STREAM,
                "bshv",
                (Read(None, "bs", self.tokens),),
                "bsh",
                self.tokens * hidden,
                weight="vh",
                params=float(part_params(self.model, None, Part.EMBEDDING).total),
                write_passes=2.0,
                launches=EMBEDDING_LAUNCH,
            )
        )
        # All that read the residual stream read it resharded once.
        self.stream = self._residual((self._read(rows, "bsh"),))

    def _head(self) -> None:
        hidden = self.model.hidden_size
        self.sizes["v"] = PADDED
        self._put(
            Operator(
                "head",
                Kind.HEAD,
                "bsv",
                (self._read(self.stream, "bsh"),),
                "bs",
                self.tokens,
                weight="hv",
                params=float(self.model.vocab_size * hidden),
                rows=self.tokens,
                columns=float(self.model.vocab_size),
                inner=float(hidden),
                read_passes=2.0,
                launches=HEAD_LAUNCH,
            )
        )

    def _attention(self, part: Part, layer: LayerSpec, params: float) -> None:
        attention, hidden = layer.attention, float(self.model.hidden_size)
        self.sizes["n"] = attention.num_kv_heads
        columns = attention.query_width + attention.expanded_kv_width
        if part is Part.QKV:
            reads, made, passes = self._read(self.stream, "bsh"), float(columns), 2.0
            self.last = self._product("qkv", "bshn", reads, "bsn", "hn", made, hidden, params, passes)
        elif part is Part.CORE:
            reads = self._read(self.last, "bsn", columns)
            values = self.tokens * attention.value_width
            core = Operator("core", Kind.CORE, "bn", (reads,), "bsn", values, layer=layer)
            self.last = self._put(core)
        else:
            width = float(attention.value_width)
            reads = self._read(self.last, "bsn", width)
            out = self._product("out", "bsnh", reads, "bsh", "nh", hidden, width, params, 0.0)
            if layer.parallel:
                self.waiting = [out]
            else:
                self._add("add_attention", [out])

    def _feed_forward(self, part: Part, block: FeedForwardSpec, params: float) -> None:
        hidden, width = float(self.model.hidden_size), float(block.intermediate_size)
        self.sizes["f"] = block.intermediate_size
        raised = block.num_up_matrices * width
        if part is Part.UP:
            reads = self._read(self.stream, "bsh")
            self.last = self._product("up", "bshf", reads, "bsf", "hf", raised, hidden, params, 2.0)
        else:
            reads = self._read(self.last, "bsf", raised)
            passes = activation_elements(block)
            down = self._product("down", "bsfh", reads, "bsh", "fh", hidden, width, params, passes)
            self._add("add_block", [down])

    def _product(
        self,
        name: str,
        splits: str,
        reads: Read,
        writes: str,
        weight: str,
        columns: float,
        inner: float,
        params: float,
        passes: float,
    ) -> int:
        launches = {"qkv": QKV_LAUNCH, "out": OUT_LAUNCH, "up": UP_LAUNCH, "down": DOWN_LAUNCH}
        return self._put(
            Operator(
                name,
                Kind.PRODUCT,
                splits,
                (reads,),
                writes,
                self.tokens * columns,
                weight=weight,
                params=params,
                rows=self.tokens,
                columns=columns,
                inner=inner,
                read_passes=passes,
                launches=launches.get(name, 0.0),
            )
        )

    def _mixture(self, layer: LayerSpec, params: float) -> None:
        moe, hidden = layer.moe, float(self.model.hidden_size)
        assert moe is not None
        self.sizes["e"] = moe.num_experts
        stream = self.stream
        gates = float(moe.num_experts)
        gate = self._product(
            "gate", "bs", self._read(stream, "bsh"), "bse", "he", gates, hidden, hidden * gates, 2.0
        )
        block = [self._routed(moe, params, stream, gate)]
        if moe.shared is not None:
            block.append(self._shared(moe.shared, stream))
        self._add("add_block", block)

    def _routed(self, moe: MoeSpec, params: float, stream: int | None, gate: int) -> int:
        hidden, expert = float(self.model.hidden_size), moe.expert
        width, gates = float(expert.intermediate_size), float(moe.num_experts)
        self.sizes["f"] = expert.intermediate_size
        routed, rows = self.tokens * moe.top_k, self.tokens * moe.top_k / moe.num_experts
        raised = expert.num_up_matrices * width
        moved = PERMUTE_ELEMENTS / 2
        up_share = raised / (raised + width)
        chances = Read(gate, "bse", self.tokens * gates)
        tokens = self._read(stream, "bsh"), chances
        sent = self._put(
            Operator(
                "dispatch",
                Kind.STREAM,
                "bshe",
                tokens,
                "ebsh",
                routed * hidden,
                write_passes=moved,
                launches=UP_LAUNCH,
            )
        )
        up_reads = Read(sent, "ebsh", routed * hidden)
        shape = moe.num_experts, rows, raised, hidden
        up = self._expert("expert_up", up_reads, "ebsf", "ehf", params * up_share, shape, 0.0)
        down_reads = Read(up, "ebsf", routed * raised)
        shape = moe.num_experts, rows, hidden, width
        passes = activation_elements(expert)
        down = self._expert("expert_down", down_reads, "ebsh", "efh", params * (1 - up_share), shape, passes)
        back = Read(down, "ebsh", routed * hidden), chances
        return self._put(
            Operator(
                "combine",
                Kind.STREAM,
                "bshe",
                back,
                "bsh",
                self.tokens * hidden,
                read_passes=moved,
                launches=DOWN_LAUNCH,
            )
        )

    def _expert(
        self,
        name: str,
        reads: Read,
        writes: str,
        weight: str,
        params: float,
        shape: tuple[int, float, float, float],
        passes: float,
    ) -> int:
        """Adds a product per expert; ``shape`` is their number, and the rows, columns and depth of each."""
        experts, rows, columns, inner = shape
        return self._put(
            Operator(
                name,
                Kind.EXPERTS,
                "bshef",
                (reads,),
                writes,
                experts * rows * columns,
                weight=weight,
                params=params,
                rows=rows,
                columns=columns,
                inner=inner,
                experts=experts,
                read_passes=passes,
            )
        )

    def _shared(self, block: FeedForwardSpec, stream: int | None) -> int:
        hidden, width = float(self.model.hidden_size), float(block.intermediate_size)
        params = float(feed_forward_params(block, self.model.hidden_size))
        raised = block.num_up_matrices * width
        self.sizes["g"] = block.intermediate_size
        share = raised / (raised + width)
        reads = self._read(stream, "bsh")
        up = self._product("shared_up", "bshg", reads, "bsg", "hg", raised, hidden, params * share, 0.0)
        passes = activation_elements(block)
        reads = self._read(up, "bsg", raised)
        rest = params * (1 - share)
        return self._product("shared_down", "bsgh", reads, "bsh", "gh", hidden, width, rest, passes)
