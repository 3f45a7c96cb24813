from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from profile_files import TF32, collectives, layers, needs_shared, read, shared_profiles

from tangram.errors import InputError
from tangram.job import Precision
from tangram.profiles.importers.aceso import OUT_OF_MEMORY_US, STACK
from tangram.profiles.importers.aceso_collectives import NO_BUFFER_MS
from tangram.profiles.records import CollectiveTime, LayerTime, Op, Scope
from tangram.profiles.shapes import LayerKind
from tangram.units import MIB

K = LayerKind

# gpt_350M at tp 2 in fp16: widths of 1,024, MiB of weights per rank.
OPERATORS = {
    "encoder-embedding": (1, 2, 54.0),
    "enc-1st-layernorm": (10, 20, 0.004),
    "enc-attention-qkv": (100, 200, 3.0),
    "enc-attention-score": (11, 21, 0),
    "enc-attention-softmax": (12, 22, 0),
    "enc-attention-dropout": (13, 23, 0),
    "enc-attention-context": (14, 24, 0),
    "enc-attention-dense": (200, 400, 1.0),
    "enc-post-attention-dropout": (15, 25, 0),
    "enc-2nd-layernorm": (16, 26, 0.004),
    "enc-MLP-GEMM-1": (300, 600, 4.0),
    "enc-MLP-gelu": (17, 27, 0),
    "enc-MLP-GEMM-2": (400, 800, 4.0),
    "enc-post-MLP-dropout": (18, 28, 0),
    "final-layernorm": (19, 29, 0.004),
    "gpt-post-process": (1000, 2000, 50.0),
}


def operators(
    tmp_path: Path, name: str = "gpt_350M_mbs1_tp2_algo0.csv", **changes: tuple[float, float, float] | None
) -> Path:
    rows = {**OPERATORS, **{key.replace("__", "-"): value for key, value in changes.items()}}
    lines = ["op_name,forward-compute,backward-compute,input_size,output_size,weights"]
    lines += [f"{key},{row[0]},{row[1]},0,0,{row[2]}" for key, row in rows.items() if row is not None]
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_operators_add_up(tmp_path: Path) -> None:
    found = layers(read("aceso", operators(tmp_path), gpu="V100-32"))
    microseconds = {kind: round((record.forward_s or 0) * 1e6) for (kind, _, _), record in found.items()}
    assert microseconds == {
        K.EMBEDDING: 1,
        K.QKV: 110,
        K.CORE: 50,
        K.OUT: 215,
        K.UP: 316,
        K.DOWN: 435,
        K.ATTENTION: 375,
        K.FEED_FORWARD: 751,
        K.LAYER: 1126,
        K.FINAL_NORM: 19,
        K.HEAD: 1019,
    }
    layer = found[K.LAYER, 2, 1]
    assert layer.backward_s == pytest.approx(2216e-6)
    assert (layer.gpu, layer.stack, layer.precision) == ("V100-32GB-SXM2", STACK, Precision.FP16)
    assert (layer.tp, layer.micro_batch, layer.includes_tp_comm) == (2, 1, True)
    assert str(layer.shape) == "layer h1024 s2048 a16/16x64 f4096"
    assert found[K.HEAD, 2, 1].shape.vocab_size == 51200  # 50 MiB x 2 ranks / 2 bytes / 1024


def test_the_swapped_partition_is_left_out(tmp_path: Path) -> None:
    found = read("aceso", operators(tmp_path, "gpt_350M_mbs1_tp2_algo1.csv"), gpu="V100-32")
    assert found.records == ()
    assert dict(found.left_out) == {"operators in the swapped partition": 16}


def test_what_ran_out_of_memory_is_left_out(tmp_path: Path) -> None:
    path = operators(tmp_path, **{"enc-attention-score": (OUT_OF_MEMORY_US, OUT_OF_MEMORY_US, 0)})
    found = read("aceso", path, gpu="V100-32")
    assert {kind for kind, _, _ in layers(found)}.isdisjoint({K.CORE, K.ATTENTION, K.LAYER})
    assert K.FEED_FORWARD in {kind for kind, _, _ in layers(found)}
    assert dict(found.left_out) == {"operators, or sums of them, that ran out of memory": 3}


def test_broken_files_name_the_place(tmp_path: Path) -> None:
    def wrong(match: str, path: Path, **given: object) -> str:
        with pytest.raises(InputError, match=match) as caught:
            read("aceso", path, **({"gpu": "V100-32"} | given))
        return str(caught.value)

    wrong("unknown operator 'dec-attention'", operators(tmp_path, **{"dec-attention": (1, 1, 0)}))
    wrong("'enc-MLP-gelu' is missing", operators(tmp_path, **{"enc-MLP-gelu": None}))
    text = wrong("3.000 MiB of weights, but gpt_1_3B", operators(tmp_path), model="gpt_1_3B")
    assert "give --model" in text
    wrong("in fp32 has 6.000", operators(tmp_path), precision=Precision.FP32)
    wrong(
        "would run at",
        operators(tmp_path, **{"enc-MLP-GEMM-1": (1, 1, 4.0)}, **{"enc-MLP-GEMM-2": (1, 1, 4.0)}),
    )
    wrong("which GPU", operators(tmp_path), gpu=None)
    wrong("names no known model", operators(tmp_path, "gpt_9T_mbs1_tp2_algo0.csv"))
    path = operators(tmp_path)
    path.write_text(path.read_text().replace("enc-MLP-gelu,17", "enc-MLP-gelu,fast"), encoding="utf-8")
    assert "algo0.csv:13: forward-compute" in wrong("'fast' is not a number", path)
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    assert ":1: " in wrong("the column 'op_name' is missing", path)
    path.write_text("op_name,forward-compute,backward-compute,weights\nx,1\n", encoding="utf-8")
    assert ":2: " in wrong("has 2 cells, but the header has 4", path)
    other = tmp_path / "notes.csv"
    other.write_text("a\n", encoding="utf-8")
    wrong("the name is none of the format aceso", other)


def collective_file(tmp_path: Path, name: str, *rows: str) -> Path:
    path = tmp_path / name
    path.write_text("\n".join(["data_size(MB),time(ms)", *rows]) + "\n", encoding="utf-8")
    return path


def test_sizes_are_those_of_the_larger_buffer(tmp_path: Path) -> None:
    """A rank holds 8 MiB before the call: an all-gather over 4 makes 32 of them."""
    for op, mib in (("all_reduce", 8), ("all_gather", 32), ("reduce_scatter", 8), ("all_to_all", 8)):
        path = collective_file(tmp_path, f"prim_gpt_1_3B_{op}_4gpus.csv", "8,0.5")
        (found,) = collectives(read("aceso", path, gpu="V100-32", link="nvlink"))
        expected = (Op(op), 4, 4, Scope.INTRA_NODE, mib * MIB, 0.0005, "nvlink")
        assert (
            found.op,
            found.ranks,
            found.ranks_per_node,
            found.scope,
            found.num_bytes,
            found.seconds,
            found.link,
        ) == expected


def test_sentinels_of_collectives_are_left_out(tmp_path: Path) -> None:
    path = collective_file(
        tmp_path, "prim_gpt_1_3B_all_reduce_4gpus.csv", f"8192,{NO_BUFFER_MS:.0f}", "0,0.1", "1,0.2"
    )
    found = read("aceso", path, gpu="V100-32")
    assert [record.num_bytes for record in collectives(found)] == [MIB]
    assert dict(found.left_out) == {
        "collectives of a size that was rounded to 0": 1,
        "collectives whose buffer did not fit": 1,
    }
    with pytest.raises(InputError, match=r"4gpus\.csv:2: seconds: 0"):
        read("aceso", collective_file(tmp_path, "prim_x_all_reduce_4gpus.csv", "1,0"), gpu="V100-32")


def test_equal_collectives_of_several_models_are_joined_by_their_median(tmp_path: Path) -> None:
    for model, time in (("a", 1.0), ("b", 9.0), ("c", 2.0)):
        collective_file(tmp_path, f"prim_{model}_all_reduce_2gpus.csv", f"4,{time}")
    found = read("aceso", tmp_path, gpu="V100-32")
    (record,) = collectives(found)
    assert record.seconds == 0.002
    assert record.source == "Aceso, prim_a_all_reduce_2gpus.csv, and others (median of 3)"
    assert found.num_repeated == 2


def test_messages(tmp_path: Path) -> None:
    """4 MiB at 2 GiB/s take 1/512 s."""
    path = tmp_path / "p2p_inter_node.csv"
    path.write_text("4,8\n2.00,4.00\n", encoding="utf-8")
    found = collectives(read("aceso", path, gpu="V100-32"))
    assert [(r.op, r.scope, r.ranks_per_node, r.num_bytes, r.seconds) for r in found] == [
        (Op.SEND, Scope.INTER_NODE, 1, 4 * MIB, 1 / 512),
        (Op.SEND, Scope.INTER_NODE, 1, 8 * MIB, 1 / 512),
    ]
    path.write_text("4,8\n2.00\n", encoding="utf-8")
    with pytest.raises(InputError, match="of the same length"):
        read("aceso", path, gpu="V100-32")


@needs_shared
def test_all_raw_files_import() -> None:
    root = shared_profiles() / "aceso-v100"
    found = read("aceso", root / "eurosys-v100-32gb", gpu="V100-32")
    assert found.num_files == 266
    points = {(r.shape, r.tp, r.micro_batch) for r in found.records if isinstance(r, LayerTime)}
    assert sum(shape.kind is K.LAYER for shape, _, _ in points) == 6 * 4 * 4  # models, tp, micro-batches
    kinds = Counter(type(record) for record in found.records)
    assert kinds == {LayerTime: 6 * 4 * 4 * 11, CollectiveTime: 1852}
    assert dict(found.left_out)["collectives whose buffer did not fit"] == 276
    small = read("aceso", root / "miniset-4gpu", gpu="V100-16GB-PCIe")
    assert small.num_files == 33


@needs_shared
def test_a_value_checked_by_hand() -> None:
    """gpt_1_3B, micro-batch 1, tp 1: the 13 operators of a layer add up to 5.78 and 9.10 ms."""
    path = shared_profiles() / "aceso-v100" / "eurosys-v100-32gb" / "gpt_1_3B_mbs1_tp1_algo0.csv"
    found = layers(read("aceso", path, gpu="V100-32"))
    layer = found[K.LAYER, 1, 1]
    assert layer.forward_s == pytest.approx(5.78e-3, abs=5e-6)
    assert layer.backward_s == pytest.approx(9.10e-3, abs=5e-6)
    assert not layer.includes_tp_comm
    head = found[K.HEAD, 1, 1]
    assert head.forward_s == pytest.approx((46.190 + 9476.845) / 1e6)


@needs_shared
def test_all_tables_import() -> None:
    """The fp32 tables of A100 and GH200 must have run tf32: fp32 units cannot do what they say."""
    root = shared_profiles() / "aceso-v100" / "tables"
    for path in sorted(root.glob("*.csv")):
        given = {"gpu": "V100-16GB-PCIe"} if "mini" in path.name else {}
        if path.name in ("ops_A100-40_fp32.csv", "ops_GH-96_fp32.csv"):
            with pytest.raises(InputError, match="in fp32"):
                read("aceso", path)
            given["precision"] = TF32  # type: ignore[assignment]
        assert read("aceso", path, **given).records


@needs_shared
def test_tables_and_raw_files_say_the_same() -> None:
    root = shared_profiles() / "aceso-v100"
    table = layers_of(read("aceso", root / "tables" / "ops_V100-32_fp16.csv").records)
    assert table == layers_of(read("aceso", root / "eurosys-v100-32gb", gpu="V100-32").records)


def layers_of(records: tuple[object, ...]) -> dict[object, tuple[float | None, float | None]]:
    return {
        (r.shape, r.tp, r.micro_batch): (r.forward_s, r.backward_s)
        for r in records
        if isinstance(r, LayerTime)
    }


@needs_shared
def test_fitted_bandwidths_are_left_out() -> None:
    path = shared_profiles() / "aceso-v100" / "tables" / "p2p_bandwidth.csv"
    found = read("aceso", path)
    assert dict(found.left_out) == {
        "bandwidths that were read off a fitted curve": 22,
        "messages of mini-4gpu, which names no GPU": 11,
    }
    across = [r for r in collectives(found) if r.scope is Scope.INTER_NODE]
    assert {record.gpu for record in across} == {"V100-32GB-SXM2"}
    one = next(r for r in across if r.num_bytes == MIB)
    assert one.seconds == pytest.approx(1 / 1024 / 3.88)  # 1 MiB at 3.88 GiB/s
    assert {r.gpu for r in read("aceso", path, gpu="RTX-2080").records} == {"RTX-2080"}
