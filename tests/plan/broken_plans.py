"""Every rule of a plan, broken by a change of one field, or of those few that belong together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

P = "pipelines[0]"
S0, S1 = f"{P}.stages[0]", f"{P}.stages[1]"


BRIDGE = {"groups": [[0, 1], [1, 2]], "kind": "nvlink", "bandwidth_bytes_per_s": 5e10, "latency_s": 5e-6}


def more(by: float) -> Callable[[Any], Any]:
    return lambda old: old + by


def swap(old: list[Any]) -> list[Any]:
    return [old[1], old[0], *old[2:]]


def drop_last(old: list[Any]) -> list[Any]:
    return old[:-1]


# Codes (the rule that is meant, then what it drags along), sample, changes, and the place of the first
# violation where it is not the first change.
Case = tuple[str, str, Mapping[str, Any]] | tuple[str, str, Mapping[str, Any], str]
CASES: list[Case] = [
    # Inputs.
    ("model-fingerprint", "dense", {"model.fingerprint": "0" * 16}),
    ("model-size", "dense", {"model.num_params": more(1)}),
    ("model-size", "moe", {"model.num_active_params": more(-1)}),
    ("model-invalid", "dense", {"model.layers[2]": 7}, "model: layers[2]"),
    ("model-invalid", "dense", {"model.layer_kinds[0].feed_forward": None}, "model: layer_kinds[0]"),
    ("num-atoms", "dense", {"num_atoms": 7}),
    ("granularity-invalid", "dense", {"granularity": "half"}),
    ("granularity-invalid", "dense", {"granularity": "3"}),
    ("gpu-part-twice", "dense", {"cluster.gpus": lambda old: [*old, old[0]]}, "cluster.gpus[2].name"),
    ("node-twice", "dense", {"cluster.nodes": lambda old: [*old, old[0]]}, "cluster.nodes[2].name"),
    (
        "gpu-part-unknown idle-island",
        "dense",
        {
            "cluster.nodes": lambda old: [*old, old[0] | {"name": "x", "gpu": "B", "num_gpus": 1}],
            "idle": lambda old: [
                old[0] | {"count": 2, "gpus": [*old[0]["gpus"], {"node": "x", "gpu_idx": 0}]}
            ],
            "islands[1].nodes": ["slow-0"],
        },
        "cluster.nodes[2].gpu",
    ),
    ("cluster-fingerprint", "dense", {"cluster.fingerprint": "0" * 16}),
    ("job-invalid", "dense", {"job.pins.micro_batch": 5}, "job (--micro-batch)"),
    ("loss-scaling", "dense", {"job.loss_scaling": "none"}),
    ("sequence-too-long", "moe", {"model.position": "learned", "model.max_positions": 8}, "job.seq_len"),
    ("precision-unsupported", "moe", {"job.precision": "bf16"}, f"{S1}.ranks"),
    # Islands, ranks, GPUs.
    (
        "bridge-groups",
        "dense",
        {"cluster.nodes": lambda old: [old[0] | {"bridge": BRIDGE}, *old[1:]]},
        "cluster.nodes[0].bridge.groups",
    ),
    ("island-twice stage-island-unknown idle-island", "dense", {"islands[1].name": "FAST-40GB"}),
    (
        "island-empty",
        "dense",
        {"islands": lambda old: [*old, old[0] | {"name": "C", "nodes": []}]},
        "islands[2].nodes",
    ),
    (
        "island-node-twice",
        "dense",
        {"islands": lambda old: [*old, old[0] | {"name": "C"}]},
        "islands[2].nodes[0]",
    ),
    ("island-node-size", "dense", {"islands[0].gpus_per_node": 8}, "islands[0].nodes[0]"),
    (
        "island-uneven",
        "dense",
        {
            "cluster.nodes": lambda old: [
                *old,
                old[0] | {"name": "fast-1", "intra_bandwidth_bytes_per_s": 2e11},
            ],
            "islands[0].nodes": ["fast-0", "fast-1"],
            "idle": lambda old: [
                *old,
                {
                    "island": "FAST-40GB",
                    "count": 4,
                    "gpus": [{"node": "fast-1", "gpu_idx": i} for i in range(4)],
                    "reason": "",
                },
            ],
        },
        "islands[0].nodes",
    ),
    ("island-gpu", "dense", {"islands[0].gpu": "SLOW-16GB"}),
    ("node-unknown", "dense", {"islands[0].nodes": lambda old: [*old, "fast-1"]}, "islands[0].nodes[1]"),
    ("node-unknown gpus-unaccounted", "dense", {"idle[0].gpus[0].node": "slow-7"}),
    ("stage-island-unknown", "dense", {f"{S0}.island": "FAST"}),
    ("stage-outside-island", "dense", {f"{S1}.island": "FAST-40GB"}, f"{S1}.ranks[0].node"),
    ("ranks-not-consecutive tied-group-ranks", "dense", {f"{S0}.ranks[1].rank": 2}),
    ("ranks-not-consecutive", "moe", {f"{S1}.ranks": swap}, f"{S1}.ranks[0].rank"),
    ("gpu-idx-out-of-range gpus-unaccounted", "dense", {"idle[0].gpus[0].gpu_idx": 2}),
    ("gpu-part-differs", "dense", {f"{S1}.ranks[0].gpu": "FAST-40GB"}),
    ("gpu-used-twice gpus-unaccounted", "dense", {f"{S0}.ranks[3].gpu_idx": 2}, f"{S0}.ranks[3]"),
    ("idle-gpu-used gpus-unaccounted", "dense", {"idle[0].gpus[0].gpu_idx": 1}, "idle[0].gpus[0]"),
    (
        "idle-gpu-twice",
        "dense",
        {"idle[0].gpus": lambda old: [*old, *old], "idle[0].count": 2},
        "idle[0].gpus[1]",
    ),
    ("idle-count", "dense", {"idle[0].count": 2}),
    ("idle-island", "dense", {"idle[0].island": "SLOW"}),
    ("idle-island", "dense", {"idle[0].island": "FAST-40GB"}, "idle[0].gpus[0].node"),
    ("gpus-unaccounted", "dense", {"idle": []}, "cluster.nodes[1]"),
    # Slices.
    ("pipeline-count gpus-unaccounted tied-group-stages bottleneck-stage", "dense", {"pipelines": []}),
    (
        "stages-missing gpus-unaccounted in-flight-length tied-group-stages bottleneck-stage",
        "dense",
        {f"{P}.stages": []},
    ),
    ("stage-index tied-group-stages", "dense", {f"{S1}.index": 2}),
    (
        "layers-missing",
        "dense",
        {f"{S0}.atoms": [0, 3], f"{S0}.layers": [0, 2], f"{S0}.recompute": drop_last},
        f"{S1}.atoms",
    ),
    (
        "layers-twice",
        "dense",
        {
            f"{S1}.atoms": [3, 6],
            f"{S1}.layers": [2, 4],
            f"{S1}.recompute": lambda old: [{"atom": 3, "layers": [2], "mode": "none"}, *old],
        },
    ),
    (
        "slice-out-of-range",
        "dense",
        {f"{S1}.atoms": [4, 7], f"{S1}.recompute": lambda old: [*old, old[-1] | {"atom": 6}]},
    ),
    (
        "slice-empty",
        "dense",
        {
            f"{S1}.atoms": [6, 6],
            f"{S1}.recompute": [],
            f"{S0}.atoms": [0, 6],
            f"{S0}.layers": [0, 4],
            f"{S0}.has_head": True,
            f"{S1}.has_head": False,
            f"{S1}.padded_vocab_size": None,
            f"{S0}.recompute": lambda old: [
                *old,
                {"atom": 4, "layers": [3], "mode": "full"},
                {"atom": 5, "layers": [], "mode": "none"},
            ],
            "tied_weight_groups": [],
        },
    ),
    (
        "ends-differ",
        "operator",
        {
            f"{S0}.has_head": True,
            "tied_weight_groups[0]": {"name": "embedding", "stages": [0, 1], "ranks": [0, 1, 2, 3, 4]},
        },
    ),
    ("layers-differ", "dense", {f"{S0}.layers": [0, 2]}),
    ("recompute-atoms", "dense", {f"{S0}.recompute": swap}, f"{S0}.recompute[0].atom"),
    ("recompute-atoms", "dense", {f"{S0}.recompute": drop_last}),
    ("recompute-layers", "dense", {f"{S0}.recompute[1].layers": [1]}),
    ("offload-atoms", "dense", {f"{S0}.offload_activation_atoms": [2, 1]}),
    ("offload-atoms", "dense", {f"{S0}.offload_activation_atoms": [4]}),
    # Degrees.
    ("degrees-product", "dense", {f"{S1}.cp": 2, f"{S1}.mesh.sizes": [1, 2, 1]}, f"{S1}.dp"),
    ("mesh-sizes", "dense", {f"{S0}.mesh.sizes": [4, 1, 1]}),
    ("mesh-axes", "dense", {f"{S0}.mesh.axes": ["tp", "cp", "dp"]}),
    ("experts-absent", "dense", {f"{S0}.ep": 2}, f"{S0}.expert_mesh"),
    ("expert-mesh-missing", "moe", {f"{S0}.expert_mesh": None}),
    ("expert-degrees-product", "moe", {f"{S0}.ep": 4, f"{S0}.expert_tp": 2}),
    ("expert-mesh-sizes", "moe", {f"{S0}.expert_mesh.sizes": [4, 1, 1]}),
    ("expert-mesh-axes", "moe", {f"{S0}.expert_mesh.axes": ["ep", "expert_dp", "expert_tp"]}),
    ("zero-axes", "dense", {f"{S0}.zero_axes": ["dp", "tp"]}),
    ("zero-axes", "dense", {f"{S0}.zero_axes": []}),
    ("zero-axes", "dense", {f"{S1}.zero_axes": ["dp"]}),
    ("zero-axes", "moe", {f"{S0}.expert_zero_axes": ["dp"]}),
    (
        "sequence-not-divisible",
        "moe",
        {"job.seq_len": 18, "prediction.tokens_per_s": lambda old: old / 16 * 18},
        f"{S0}.cp",
    ),
    (
        "sequence-not-divisible",
        "dense",
        {"job.seq_len": 15, "prediction.tokens_per_s": lambda old: old / 16 * 15},
        f"{S0}.cp",
    ),
    ("vocab-missing", "dense", {f"{S0}.padded_vocab_size": None}),
    ("vocab-differs", "dense", {f"{S0}.padded_vocab_size": 384}),
    (
        "vocab-unneeded layers-missing",
        "operator",
        {
            f"{S1}.has_head": False,
            f"{S1}.atoms": [9, 11],
            f"{S1}.recompute": drop_last,
            "tied_weight_groups": [],
        },
        f"{S1}.padded_vocab_size",
    ),
    (
        "vocab-too-small",
        "dense",
        {"model.padded_vocab_size": 128, f"{S0}.padded_vocab_size": 128, f"{S1}.padded_vocab_size": 128},
    ),
    (
        "vocab-not-divisible",
        "dense",
        {"model.padded_vocab_size": 251, f"{S0}.padded_vocab_size": 251, f"{S1}.padded_vocab_size": 251},
        f"{S0}.padded_vocab_size",
    ),
    ("attention-kernel", "dense", {f"{S1}.attention_kernel": "flash"}),
    ("attention-kernel", "moe", {f"{S0}.attention_kernel": "flash"}),
    ("attention-kernel", "dense", {f"{S1}.attention_kernel": "xformers"}),
    (
        "kv-heads-not-divisible",
        "dense",
        {f"{S0}.dp": 1, f"{S0}.tp": 4, f"{S0}.mesh.sizes": [1, 1, 4], f"{S0}.micro_batch_per_dp_rank": [4]},
        f"{S0}.tp",
    ),
    ("experts-not-divisible", "moe", {"model.layer_kinds[1].moe.num_experts": 3}, f"{S0}.ep"),
    (
        "expert-ffn-not-divisible",
        "moe",
        {"model.layer_kinds[1].moe.expert.intermediate_size": 49},
        f"{S1}.expert_tp",
    ),
    ("ffn-not-divisible", "dense", {"model.layer_kinds[0].feed_forward.intermediate_size": 63}, f"{S0}.tp"),
    (
        "heads-not-divisible",
        "dense",
        {"model.layer_kinds[0].attention.num_heads": 3, "model.layer_kinds[0].attention.num_kv_heads": 3},
        f"{S0}.tp",
    ),
    (
        "heads-not-divisible",
        "moe",
        {
            f"{S0}.cp_exchange": "a2a",
            "model.layer_kinds[0].attention.num_heads": 3,
            "model.layer_kinds[0].attention.num_kv_heads": 1,
            "model.layer_kinds[1].attention.num_heads": 2,
        },
        f"{S0}.tp",
    ),
    (
        "tp-crosses-nodes",
        "dense",
        {
            "cluster.nodes": lambda old: [
                old[0] | {"num_gpus": 2},
                old[0] | {"name": "fast-1", "num_gpus": 2},
                old[1],
            ],
            "islands[0].nodes": ["fast-0", "fast-1"],
            "islands[0].gpus_per_node": 2,
            f"{S0}.ranks": lambda old: [
                slot | {"node": f"fast-{i % 2}", "gpu_idx": i // 2} for i, slot in enumerate(old)
            ],
        },
        f"{S0}.ranks[0]",
    ),
    # Stages whose layers differ.
    ("layer-configs-atoms", "mixed", {f"{S0}.layer_configs": lambda old: old[:1]}),
    ("layer-configs-atoms", "mixed", {f"{S0}.layer_configs": lambda old: old[:2]}),
    (
        "layer-configs-atoms",
        "mixed",
        {f"{S0}.layer_configs[1].atoms": [1, 4]},
        f"{S0}.layer_configs",
    ),
    ("layer-configs-first", "mixed", {f"{S0}.zero": 2}, f"{S0}.layer_configs[0].zero"),
    (
        "layer-configs-tied",
        "mixed",
        {f"{S0}.layer_configs[2].zero": 2},
        f"{S0}.layer_configs[2]",
    ),
    (
        "mesh-sizes",
        "mixed",
        {f"{S0}.layer_configs[1].mesh.sizes": [2, 1, 2]},
        f"{S0}.layer_configs[1].mesh.sizes",
    ),
    ("degrees-product mesh-sizes", "mixed", {f"{S0}.layer_configs[1].cp": 2}, f"{S0}.layer_configs[1].dp"),
    (
        "micro-batch-sum",
        "mixed",
        {f"{S0}.layer_configs[1].micro_batch_per_dp_rank": [1, 1, 1, 2]},
        f"{S0}.layer_configs[1].micro_batch_per_dp_rank",
    ),
    ("experts-absent", "mixed", {f"{S0}.layer_configs[1].ep": 2}, f"{S0}.layer_configs[1].expert_mesh"),
    ("zero-axes", "mixed", {f"{S0}.layer_configs[1].zero_axes": []}, f"{S0}.layer_configs[1].zero_axes"),
    # Schedule.
    (
        "batch-product throughput bound-gap",
        "dense",
        {f"{P}.num_micro_batches": 7, "prediction.iteration_time_s": more(1)},
    ),
    ("batch-sum throughput", "dense", {"job.global_batch": 48}, f"{P}.global_batch"),
    ("micro-batch-length", "dense", {f"{S0}.micro_batch_per_dp_rank": [4]}),
    ("micro-batch-sum", "dense", {f"{S0}.micro_batch_per_dp_rank": [3, 2]}),
    ("in-flight-length", "dense", {f"{P}.schedule.in_flight": [3]}),
    (
        "in-flight-order",
        "moe",
        {
            f"{P}.schedule.in_flight[0]": 1,
            f"{S0}.predicted.in_flight": 1,
            f"{S0}.predicted.activation_bytes": lambda old: 2 * old,
        },
    ),
    ("in-flight-not-plain", "dense", {"job.free_warmup": False}, f"{P}.schedule.in_flight[0]"),
    ("in-flight-differs", "dense", {f"{P}.schedule.in_flight[0]": 2}, f"{S0}.predicted.in_flight"),
    ("overlap-differs", "dense", {f"{P}.schedule.overlap_p2p": False}),
    ("overlap-range", "dense", {f"{P}.schedule.assumed_overlaps.p2p": 1.5}),
    ("tied-group-missing", "dense", {"tied_weight_groups": []}),
    ("tied-group-unneeded", "dense", {"model.tied_embeddings": False}, "tied_weight_groups[0]"),
    ("tied-group-twice", "dense", {"tied_weight_groups": lambda old: [*old, *old]}, "tied_weight_groups[1]"),
    ("tied-group-stages", "dense", {"tied_weight_groups[0].stages": [0]}),
    ("tied-group-ranks", "dense", {"tied_weight_groups[0].ranks": drop_last}),
    # Memory.
    ("memory-items", "dense", {f"{S0}.predicted.memory": lambda old: {"context": old.pop("reserve")} | old}),
    ("memory-items", "dense", {f"{S0}.predicted.memory": lambda old: old | {"margins": 0}}),
    (
        "memory-sum",
        "dense",
        {f"{S0}.predicted.memory": lambda old: old | {"margin": 2**20}},
        f"{S0}.predicted.peak_bytes",
    ),
    (
        "memory-over-capacity",
        "dense",
        {
            f"{S1}.predicted.memory": lambda old: old | {"margin": 2**34},
            f"{S1}.predicted.peak_bytes": more(2**34),
            f"{S1}.predicted.headroom_bytes": more(-(2**34)),
        },
        f"{S1}.predicted.peak_bytes",
    ),
    (
        "memory-negative",
        "dense",
        {
            f"{S0}.predicted.memory.reserve": -1,
            f"{S0}.predicted.peak_bytes": more(-(2**30) - 1),
            f"{S0}.predicted.headroom_bytes": more(2**30 + 1),
        },
    ),
    (
        "memory-sum",
        "dense",
        {f"{S0}.predicted.peak_bytes": more(1), f"{S0}.predicted.headroom_bytes": more(-1)},
    ),
    ("memory-headroom", "dense", {f"{S0}.predicted.headroom_bytes": more(1)}),
    (
        "memory-over-capacity",
        "dense",
        {
            f"{S1}.predicted.capacity_bytes": 7 * 2**30,
            f"{S1}.predicted.headroom_bytes": more(7 * 2**30 - 2**34 + 2**29),
        },
        f"{S1}.predicted.peak_bytes",
    ),
    (
        "capacity-too-large",
        "dense",
        {f"{S1}.predicted.capacity_bytes": more(1), f"{S1}.predicted.headroom_bytes": more(1)},
    ),
    (
        "activations-differ",
        "dense",
        {f"{S0}.predicted.activation_bytes": more(2)},
        f"{S0}.predicted.memory.activations",
    ),
    # Prediction.
    ("stage-time", "dense", {f"{S1}.predicted.forward_s": 0.0}),
    ("stage-time", "dense", {f"{S1}.predicted.step_s": -1.0}),
    ("send-time", "dense", {f"{S0}.predicted.send_forward_s": None}),
    ("send-time", "dense", {f"{S1}.predicted.send_backward_s": 0.1}),
    ("boundary-bytes", "dense", {f"{S0}.predicted.boundary_bytes": 0}),
    ("prediction-not-positive", "dense", {"prediction.mfu": 0.0}),
    ("prediction-not-positive", "dense", {"comparisons[0].iteration_time_s": -1.0}),
    ("prediction-range", "dense", {"prediction.mfu": 1.2}),
    ("prediction-range", "dense", {"prediction.bubble_frac": 1.0}),
    ("bottleneck-stage", "dense", {"prediction.bottleneck_stage": 2}),
    ("throughput", "dense", {"prediction.tokens_per_s": lambda old: old * 1.001}),
    ("prediction-too-fast", "dense", {f"{S1}.predicted.forward_s": 0.5}, "prediction.iteration_time_s"),
    ("bound", "dense", {"bound.lower_bound_s": 0.0}),
    ("bound-above-time", "dense", {"bound.lower_bound_s": more(1)}),
    ("bound-gap", "dense", {"bound.gap_frac": 0.24}),
    ("staircase-order", "dense", {"bound.staircase": swap}, "bound.staircase[1].time_s"),
    ("comparison-name", "dense", {"comparisons[0].name": "random"}),
    ("comparison-empty", "dense", {"comparisons[1].reason": None}, "comparisons[1]"),
]
