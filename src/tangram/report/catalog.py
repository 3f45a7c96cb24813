"""What is known by name: model presets and GPU parts, as tables and one by one."""

from __future__ import annotations

from collections.abc import Sequence

from tangram.cluster.catalog import domain_gpus, gpu_link, has_peer_access
from tangram.cluster.spec import GpuSpec
from tangram.job import Precision
from tangram.model.params import count_params, num_active_params, num_params
from tangram.model.spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, MoeSpec
from tangram.report.grid import Grid
from tangram.report.page import Page
from tangram.report.words import big, counted, sentence
from tangram.units import GIB, format_bandwidth


def add_models(page: Page, models: Sequence[ModelSpec]) -> None:
    """Adds one line per model."""
    grid = Grid(
        ["name", "params", "active", "layers", "hidden", "heads/KV", "experts", "vocab"],
        "lrrrrrrr",
        indent=0,
    )
    for model in models:
        attention = model.layers[0].attention
        moe = next((layer.moe for layer in model.layers if layer.moe is not None), None)
        grid.add(
            model.name,
            big(num_params(model)),
            big(num_active_params(model)),
            str(model.num_layers),
            str(model.hidden_size),
            f"{attention.num_heads}/{attention.num_kv_heads}",
            f"{moe.top_k} of {moe.num_experts}" if moe else "-",
            str(model.vocab_size),
        )
    page.grid(grid)


def add_model(page: Page, model: ModelSpec) -> None:
    """Adds everything about one model."""
    total, active = num_params(model), num_active_params(model)
    page.heading(
        model.name, f"{big(total)} parameters" + (f", {big(active)} active" if active != total else "")
    )
    rows = [
        ("parameters", f"{total:,}" + (f"; {active:,} active per token" if active != total else "")),
        ("hidden size", str(model.hidden_size)),
        (
            "vocabulary",
            f"{model.vocab_size:,}; embedding and head {'tied' if model.tied_embeddings else 'untied'}",
        ),
        ("positions", f"{model.position}, {model.max_positions:,}"),
    ]
    if model.embedding_size is not None:
        rows.append(("embedding", f"{model.embedding_size} wide, projected to and from the hidden size"))
    rows += _layer_rows(model.main.layers)
    if model.num_prediction_layers:
        more, last = count_params(model).total - total, _layer(model.layers[-1])
        what = f"{more:,} parameters more, to predict further tokens in training; {last}"
        rows.append((f"{model.num_prediction_layers} more", what))
    rows += [("source", model.source)] if model.source else []
    page.facts(rows)


def add_gpus(page: Page, parts: Sequence[GpuSpec]) -> None:
    """Adds one line per part."""
    full = _gpu_grid(parts, with_links=True)
    page.grid(full if full.width <= page.width else _gpu_grid(parts, with_links=False))
    page.wrapped(
        "Rates: TFLOP/s that a large matrix product reaches; ~ marks a share of the data sheet's peak where "
        "nobody measured. Memory: what a process can allocate.",
        indent=0,
        style="dim",
    )


def add_gpu(page: Page, part: GpuSpec) -> None:
    """Adds everything about one part."""
    page.heading(part.name, f"{part.vendor}, {part.family}, {part.architecture}")
    grid = Grid(["precision", "data sheet", "achieved"], "lrr")
    for precision in Precision:
        if part.supports(precision):
            peak, achieved = part.peak_flop_per_s[precision], part.achieved_flop_per_s.get(precision, 0.0)
            grid.add(precision.value, f"{peak / 1e12:.0f} TFLOP/s", f"{achieved / 1e12:.0f} TFLOP/s")
    page.grid(grid)
    lacking = [precision.value for precision in Precision if not part.supports(precision)]
    memory = f"{part.memory_bytes / GIB:.0f} GiB, {part.usable_memory_bytes / GIB:.1f} GiB usable"
    memory += f", {format_bandwidth(part.memory_bandwidth_bytes_per_s)}"
    page.facts(
        [
            ("achieved is", part.achieved_basis),
            *([("lacks", ", ".join(lacking))] if lacking else []),
            ("memory", memory),
            ("link", _links(part)),
            ("attention", f"{part.attention_kernel} kernel"),
            ("usual node", counted(part.gpus_per_node, "GPU")),
            ("source", sentence(part.source)),
        ]
    )


def _links(part: GpuSpec) -> str:
    """What joins two GPUs in a node, and whether it joins all of them."""
    own, domain = gpu_link(part), domain_gpus(part)
    link = f"{format_bandwidth(part.link_bytes_per_s)} per direction" if own else "none"
    if own and not own.joins_all:
        link += ", bridges over pairs"
    if domain:
        link += f", over {domain} GPUs of several nodes"
    path = "" if has_peer_access(part) else ", through host memory: no peer access"
    return f"{link}; PCIe {format_bandwidth(part.pcie_bytes_per_s)}{path}"


_RATES = (Precision.FP8, Precision.BF16, Precision.FP16, Precision.TF32, Precision.FP32)


def _gpu_grid(parts: Sequence[GpuSpec], *, with_links: bool) -> Grid:
    headers = ["name", "memory", "fp8", "bf16", "fp16", "tf32", "fp32"]
    headers += ["memory rate", "link", "PCIe"] if with_links else []
    headers += ["attention"]
    grid = Grid(headers, "l" + "r" * (len(headers) - 2) + "l", indent=0)
    for part in parts:
        cells = [part.name, f"{part.usable_memory_bytes / GIB:.1f} GiB"]
        cells += [_rate(part, p) for p in _RATES]
        if with_links:
            cells += [
                format_bandwidth(part.memory_bandwidth_bytes_per_s),
                format_bandwidth(part.link_bytes_per_s) if part.link_bytes_per_s > 0 else "-",
                format_bandwidth(part.pcie_bytes_per_s),
            ]
        grid.add(*cells, part.attention_kernel)
    return grid


def _rate(part: GpuSpec, precision: Precision) -> str:
    rate = part.achieved_flop_per_s.get(precision)
    if rate is None:
        return "-"
    mark = "" if part.achieved_basis == "measured" else "~"
    return f"{mark}{rate / 1e12:.0f}"


def _layer_rows(layers: Sequence[LayerSpec]) -> list[tuple[str, str]]:
    """One row per kind of layer, with how many there are."""
    counts: dict[LayerSpec, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return [(f"{count} layers" if count > 1 else "1 layer", _layer(layer)) for layer, count in counts.items()]


def _layer(layer: LayerSpec) -> str:
    norms = f"{layer.norm} in front of and behind each block" if layer.post_norm else str(layer.norm)
    pieces = [_attention(layer.attention), _block(layer.feed_forward), norms]
    return "; ".join(pieces + ["blocks side by side"] * layer.parallel)


def _attention(attention: AttentionSpec) -> str:
    heads = f"{attention.num_heads} heads of {attention.head_dim}"
    latent = attention.latent
    if latent is not None:
        queries = f"{latent.q_rank} for queries and " if latent.q_rank else ""
        return (
            f"{heads}; latent vectors of {queries}{latent.kv_rank} for keys and values of {latent.value_dim}"
        )
    window = f", a window of {attention.window:,} keys" if attention.window else ""
    return f"{heads}, {attention.num_kv_heads} for keys and values{window}"


def _block(block: FeedForwardSpec | MoeSpec) -> str:
    if isinstance(block, FeedForwardSpec):
        return f"{'gated ' if block.gated else ''}feed-forward of {block.intermediate_size}"
    gated = "gated " if block.expert.gated else ""
    shared = f", shared ones of {block.shared.intermediate_size}" if block.shared else ""
    experts = f"{block.num_experts} {gated}experts of {block.expert.intermediate_size}"
    return f"{experts}, {block.top_k} per token{shared}"
