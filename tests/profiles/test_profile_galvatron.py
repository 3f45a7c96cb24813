from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from profile_files import (
    collectives,
    layers,
    needs_shared,
    rates,
    read,
    shared_profiles,
    small_model,
    write_json,
)

from tangram.errors import InputError
from tangram.job import Precision
from tangram.profiles.importers.galvatron_hardware import STACK
from tangram.profiles.records import Op, Scope
from tangram.profiles.shapes import LayerKind
from tangram.units import MIB

K = LayerKind
GPU = "A100-80GB-SXM"
PER_LAYER_MIB = (4 * 256 * 256 + 3 * 256 * 1024 + 2 * 256) * 4 / MIB


def hardware(tmp_path: Path, name: str, data: dict[str, Any]) -> Path:
    return write_json(tmp_path / f"{name}_2nodes_8gpus_per_node.json", data)


def test_all_reduce_bandwidths(tmp_path: Path) -> None:
    """On 2 nodes of 8: neighbours fill a node first; strided groups of r are 16 / r apart."""
    data = {
        "allreduce_size_16_consec_1": 44.0,
        "allreduce_size_8_consec_1": 155.0,
        "allreduce_size_8_consec_0": 20.0,
        "allreduce_size_2_consec_0": 8.0,
    }
    found = rates(read("galvatron", hardware(tmp_path, "allreduce_bandwidth", data), gpu=GPU, link="ib"))
    assert [(r.ranks, r.ranks_per_node, r.scope, r.bus_bytes_per_s / 1e9) for r in found] == [
        (2, 1, Scope.INTER_NODE, 8.0),
        (8, 4, Scope.INTER_NODE, 20.0),
        (16, 8, Scope.INTER_NODE, 44.0),
        (8, 8, Scope.INTRA_NODE, 155.0),
    ]
    assert {(r.op, r.stack, r.link, r.gpu) for r in found} == {(Op.ALL_REDUCE, STACK, "ib", GPU)}


def test_strided_ranks_inside_a_node_are_left_out(tmp_path: Path) -> None:
    data = {"allreduce_size_4_consec_1": 150.0, "allreduce_size_4_consec_0": 140.0}
    path = write_json(tmp_path / "allreduce_bandwidth_1nodes_8gpus_per_node.json", data)
    found = read("galvatron", path, gpu=GPU)
    assert [r.bus_bytes_per_s / 1e9 for r in rates(found)] == [150.0]
    assert dict(found.left_out) == {"strided ranks inside one node": 1}


def test_messages_between_stages(tmp_path: Path) -> None:
    path = hardware(tmp_path, "p2p_bandwidth", {"pp_size_2": 7.5, "pp_size_16": 8.0})
    found = rates(read("galvatron", path, gpu=GPU))
    assert [(r.op, r.ranks, r.ranks_per_node, r.scope) for r in found] == [
        (Op.SEND, 2, 1, Scope.INTER_NODE),
        (Op.SEND, 16, 8, Scope.INTER_NODE),
    ]


def test_times_of_messages_are_of_mebibytes(tmp_path: Path) -> None:
    data = {"allreduce_size_8_4MB_time": 0.25, "all2all_size_16_2MB_time": 0.5}
    found = collectives(read("galvatron", hardware(tmp_path, "sp_time", data), gpu=GPU))
    assert [(r.op, r.ranks, r.ranks_per_node, r.num_bytes, r.seconds) for r in found] == [
        (Op.ALL_TO_ALL, 16, 8, 2 * MIB, 0.0005),
        (Op.ALL_REDUCE, 8, 8, 4 * MIB, 0.00025),
    ]


@pytest.mark.parametrize(
    ("name", "data", "wrong"),
    [
        ("sp_time", {"pp_size_2": 1.0}, "pp_size_2: is an unknown key"),
        ("p2p_bandwidth", {"pp_size_3": 1.0}, "groups of 3 do not divide 16 GPUs"),
        ("p2p_bandwidth", {"pp_size_2": "fast"}, "is text"),
        ("p2p_bandwidth", {"pp_size_2": 0}, "0 was not measured"),
    ],
)
def test_broken_hardware_files_name_the_key(
    tmp_path: Path, name: str, data: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(InputError, match=wrong):
        read("galvatron", hardware(tmp_path, name, data), gpu=GPU)
    with pytest.raises(InputError, match="which GPU"):
        read("galvatron", hardware(tmp_path, name, {"pp_size_2": 1.0}))


def model_file(tmp_path: Path, what: str, data: dict[str, Any], name: str = "mine") -> Path:
    return write_json(tmp_path / f"{what}_profiling_bf16_{name}.json", data)


def given(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {"gpu": GPU, "model": small_model(tmp_path)} | changes


def test_times_are_per_sample_in_the_file(tmp_path: Path) -> None:
    data = {
        "layernum[2]_bsz4_seq128": 5.0,
        "layernum[4]_bsz4_seq128": 7.0,
        "layertype_0_bsz4_seq128": 0.25,
        "layertype_0_bsz4_seq128_attention": 0.1,
        "layertype_0_bsz4_seq128_mlp": 0.15,
        "layertype_other_bsz4_seq128": 0.5,
    }
    found = read("galvatron", model_file(tmp_path, "computation", data), **given(tmp_path))
    by_point = layers(found)
    assert {kind: record.forward_s for (kind, _, _), record in by_point.items()} == {
        K.LAYER: 0.001,
        K.ATTENTION: pytest.approx(0.0004),
        K.FEED_FORWARD: pytest.approx(0.0006),
    }
    record = by_point[K.LAYER, 1, 4]
    assert (record.backward_s, record.precision, record.shape.seq_len) == (None, Precision.BF16, 128)
    assert dict(found.left_out) == {"times of embedding and LM head in one figure": 1}


def test_the_batch_of_an_old_file_is_the_one_whose_depths_fit(tmp_path: Path) -> None:
    data = {"layernum[6]_bsz2": 30.0, "layernum[12]_bsz2": 42.0, "layertype_0": 1.0}
    path = model_file(tmp_path, "computation", data, "hidden256_head4_seqlen64")
    (record,) = layers(read("galvatron", path, **given(tmp_path))).values()
    assert (record.micro_batch, record.forward_s, record.shape.seq_len) == (2, 0.002, 64)
    other = model_file(tmp_path, "computation", data | {"layertype_0": 1.1}, "hidden256_head4_seqlen64")
    found = read("galvatron", other, **given(tmp_path))
    assert dict(found.left_out) == {"times that do not say for which batch": 1}


def test_differences_of_disturbed_runs_are_left_out(tmp_path: Path) -> None:
    data = {
        "layernum[2]_bsz1_seq8": 30.0,  # longer than with twice the batch
        "layernum[2]_bsz2_seq8": 20.0,
        "layernum[2]_bsz4_seq8": 60.0,
        "layernum[4]_bsz1_seq8": 40.0,
        "layernum[4]_bsz2_seq8": 40.0,
        "layernum[4]_bsz4_seq8": 50.0,
        "layertype_0_bsz1_seq8": 5.0,
        "layertype_0_bsz2_seq8": 5.0,
        "layertype_0_bsz4_seq8": -1.25,
    }
    found = read("galvatron", model_file(tmp_path, "computation", data), **given(tmp_path))
    assert [record.micro_batch for record in layers(found).values()] == [2]
    assert dict(found.left_out) == {
        "batches that took longer than larger ones of the same depth": 1,
        "differences of two depths that are not above zero": 1,
    }


def memory(size: float = PER_LAYER_MIB, **degrees: float) -> dict[str, Any]:
    return {"parameter_size": size, "tp_activation_per_bsz_dict": degrees}


def test_activations_are_those_with_sequence_parallelism(tmp_path: Path) -> None:
    data = {
        "1_1_8_sp": {"layernum[1]_bsz8_seq128_rank0_ms": 1.0},
        "layertype_0": memory(**{"1": 99.0, "2": 60.0}),
        "layertype_0_sp": memory(**{"1": 4.0, "2": 2.5, "checkpoint": 1.0}),
        "other_memory_pp_off_sp": {"model_states": {"1": 1.0}},
    }
    path = model_file(tmp_path, "memory", data, "hidden256_head4_seqlen64")
    found = read("galvatron", path, **given(tmp_path))
    assert {point: record.activation_bytes for point, record in layers(found).items()} == {
        (K.LAYER, 1, 1): 4 * MIB,
        (K.LAYER, 2, 1): 2.5 * MIB,
    }
    assert dict(found.left_out) == {
        "activations at tp > 1 without sequence parallelism": 1,
        "activations under recomputation": 1,
        "memory of whole models, and of embedding and LM head in one figure": 2,
    }


def test_time_and_memory_of_one_layer_are_joined(tmp_path: Path) -> None:
    model_file(tmp_path, "computation", {"layertype_0_bsz1_seq128": 2.0})
    model_file(tmp_path, "memory", {"layertype_0_sp": {"128": memory(**{"1": 4.0})}})
    (record,) = layers(read("galvatron", tmp_path, **given(tmp_path))).values()
    assert (record.forward_s, record.activation_bytes) == (0.002, 4 * MIB)
    assert record.source == (
        "Galvatron, memory_profiling_bf16_mine.json + Galvatron, computation_profiling_bf16_mine.json"
    )


def test_two_files_with_different_times_are_refused(tmp_path: Path) -> None:
    model_file(tmp_path, "computation", {"layertype_0_bsz1_seq128": 2.0}, "a")
    model_file(tmp_path, "computation", {"layertype_0_bsz1_seq128": 3.0}, "a_all")
    with pytest.raises(InputError, match="has other figures in"):
        read("galvatron", tmp_path, **given(tmp_path))


def test_broken_model_files_name_the_place(tmp_path: Path) -> None:
    def wrong(match: str, path: Path, **changes: Any) -> None:
        with pytest.raises(InputError, match=match):
            read("galvatron", path, **given(tmp_path, **changes))

    times = {"layertype_0_bsz1": 2.0}
    wrong("how long sequences are", model_file(tmp_path, "computation", times))
    wrong("layertype: is an unknown key", model_file(tmp_path, "computation", {"layertype": 2.0}))
    wrong("says a width of 512", model_file(tmp_path, "computation", times, "hidden512_head4_seqlen64"))
    wrong(
        "says a number of heads of 8", model_file(tmp_path, "computation", times, "hidden256_head8_seqlen64")
    )
    wrong("which model", model_file(tmp_path, "computation", times, "hidden256_head4"), model=None)
    large = {"layertype_0_sp": {"128": memory(2 * PER_LAYER_MIB)}}
    wrong("this is the profile of another model", model_file(tmp_path, "memory", large))
    neither = {"layertype_0_sp": {"128": memory(two=1.0)}}
    wrong("is neither a degree nor 'checkpoint'", model_file(tmp_path, "memory", neither))


PUBLISHED = {
    "gpt_fa": {"hidden1600": "gpt-1.5b", "hidden2560": "gpt-2.7b", "hidden4096": "gpt-6.7b"},
    "gpt_hf": {"hidden1600": "gpt-1.5b", "hidden2560": "gpt-2.7b", "hidden4096": "gpt-6.7b"},
    "llama_fa": {"hidden4096": "llama-7b"},
    "llama_hf": {"hidden4096": "llama-7b", "llama-7b": None},
}


@needs_shared
def test_all_published_files_import() -> None:
    root = shared_profiles() / "galvatron"
    num_files = 0
    for folder, models in PUBLISHED.items():
        for path in sorted((root / "v2-dev_opt" / folder).glob("*_profiling_*.json")):
            model = next(model for part, model in models.items() if part in path.name)
            read("galvatron", path, gpu=GPU, model=model)
            num_files += 1
    assert num_files == len(list((root / "v2-dev_opt").rglob("*_profiling_*.json"))) == 24
    main = read("galvatron", root / "main", gpu=GPU)
    assert (main.num_files, len(collectives(main)), len(rates(main)), len(layers(main))) == (11, 66, 14, 15)
    experts = layers(read("galvatron", root / "laer-moe", gpu=GPU))
    assert {kind for kind, _, _ in experts} == {K.EXPERT}
    assert sorted(micro_batch for _, _, micro_batch in experts) == list(range(1, 13))


@needs_shared
def test_values_checked_by_hand() -> None:
    root = shared_profiles() / "galvatron" / "main"
    by_point = layers(read("galvatron", root, gpu=GPU))
    assert by_point[K.LAYER, 1, 1].forward_s == pytest.approx(4.396252679824831e-3)
    assert by_point[K.LAYER, 2, 1].activation_bytes == round(273.28173828125 * MIB)
    # Two depths of whole models: (layernum[4] - layernum[2]) / 2 at batch 2, for both samples
    found = read("galvatron", root / "sp_time_1nodes_8gpus_per_node.json", gpu=GPU)
    one = next(
        r for r in collectives(found) if (r.op, r.ranks, r.num_bytes) == (Op.ALL_REDUCE, 8, 1024 * MIB)
    )
    assert one.seconds == pytest.approx(8.1409e-3)
    assert one.bus_bytes_per_s == pytest.approx(230.8e9, rel=1e-3)


@needs_shared
def test_the_disturbed_runs_of_llama_are_left_out() -> None:
    """Batches 1, 4 and 5 have negative differences; 2 and 3 have twice the time of all others."""
    folder = shared_profiles() / "galvatron" / "v2-dev_opt" / "llama_fa"
    found = layers(read("galvatron", *folder.glob("computation_*"), gpu=GPU, model="llama-7b"))
    assert sorted(micro_batch for _, _, micro_batch in found) == [6, 7, 8, 9, 10, 11, 12]
    per_sample = [(record.forward_s or 0) / record.micro_batch for record in found.values()]
    assert max(per_sample) / min(per_sample) < 1.06
