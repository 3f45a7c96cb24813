"""Checkpoints: what ranks write transformers reads, and the other way round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_cases import CONFIGS, VOCAB, batch_of, module_of, plan_of, tokens
from ranks import RankPool
from torch_or_skip import torch
from whole_tensors import assembled, pieces_of, whole_weights

safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed (extra train)")
from safetensors.torch import load_file, save_file  # noqa: E402

from tangram.errors import InputError  # noqa: E402
from tangram.model.hf import read_hf_config  # noqa: E402
from tangram.model.serial import fingerprint  # noqa: E402
from tangram.plan.schema import PlanDocument  # noqa: E402
from tangram.runtime import weights  # noqa: E402
from tangram.runtime.weights import load_weights, save_weights  # noqa: E402

LAYOUTS: dict[str, dict[str, Any]] = {
    "llama": {"tp": 2, "cuts": (2,)},
    "mistral": {"dp": 2, "cp": 2, "cuts": (1, 2)},
    "qwen2": {"tp": 2, "dp": 2},
    "qwen3": {"tp": 2, "cuts": (3,)},
    "gpt2": {"tp": 4, "cuts": (2,)},
    "mixtral": {"dp": 2, "tp": 2, "ep": 2, "expert_tp": 2, "cuts": (2,)},
    "qwen3_moe": {"tp": 2, "dp": 2, "ep": 2, "cuts": (3,)},
}


def stage_of(plan: PlanDocument, rank: int) -> int:
    return next(stage.index for stage in plan.stages if rank in {slot.rank for slot in stage.ranks})


def saving_rank(rank: int, plan: PlanDocument, folder: Path, shard_bytes: int) -> Any:
    weights.SHARD_BYTES = shard_bytes
    module = module_of(plan, rank, stage_idx=stage_of(plan, rank), dtype=torch.float32)
    save_weights(folder, module, plan, torch.distributed.group.WORLD)
    return pieces_of(module, gradients=False)


def loading_rank(rank: int, plan: PlanDocument, folder: Path) -> Any:
    module = module_of(plan, rank, stage_idx=stage_of(plan, rank), dtype=torch.float32)
    load_weights(folder, module)
    return pieces_of(module, gradients=False)


def unpadded(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor[:VOCAB] if len(tensor) == 256 else tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("family", CONFIGS)
def test_there_and_back(ranks: RankPool, tmp_path: Path, family: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    plan = plan_of(family, **LAYOUTS[family])
    size = sum(len(stage.ranks) for stage in plan.stages)
    held = ranks.run(size, saving_rank, plan, tmp_path, 20_000)
    whole = unpadded(assembled(piece for pieces in held for piece in pieces))

    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == whole.keys()
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())
    assert sorted(set(index["weight_map"].values())) == sorted(
        path.name for path in tmp_path.iterdir() if path.suffix == ".safetensors"
    )
    spec = read_hf_config(tmp_path)  # which also compares the sizes
    assert fingerprint(spec) == plan.model.fingerprint

    # transformers finds every tensor where it expects it, and computes the same loss
    peer, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True, dtype=torch.float32, attn_implementation="eager"
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    single = plan_of(family)
    module = module_of(single, 0, dtype=torch.float32)
    ids, labels = tokens()
    with torch.no_grad():
        logits = peer(ids, use_cache=False).logits.float()
        own = module(batch_of(single, 0)).item()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    assert own == pytest.approx(loss.item(), rel=2e-6)

    # what transformers writes, ranks read
    torch.manual_seed(1)
    for parameter in peer.parameters():
        parameter.data.normal_()
    again = tmp_path / "again"
    peer.save_pretrained(again, max_shard_size="30KB")
    held = ranks.run(size, loading_rank, plan, again)
    found = unpadded(assembled(piece for pieces in held for piece in pieces))
    stored: dict[str, Any] = {}
    for path in again.glob("*.safetensors"):
        stored |= load_file(path)
    assert found.keys() == stored.keys()
    for name, tensor in stored.items():
        assert torch.equal(found[name], tensor), name


def test_one_file_of_one_rank(tmp_path: Path) -> None:
    plan = plan_of("llama")
    module = module_of(plan, 0, dtype=torch.bfloat16)
    (tmp_path / "model.safetensors.index.json").write_text("{}")  # left over
    save_weights(tmp_path, module, plan)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    other = module_of(plan, 0, dtype=torch.bfloat16, seed=9)
    load_weights(tmp_path, other)
    expected = whole_weights([module])
    assert all(torch.equal(tensor, expected[name]) for name, tensor in whole_weights([other]).items())


def test_checkpoints_without_the_prefix(tmp_path: Path) -> None:
    """As the first checkpoints of GPT-2 are."""
    plan = plan_of("gpt2")
    module = module_of(plan, 0, dtype=torch.float32)
    save_weights(tmp_path, module, plan)
    file = tmp_path / "model.safetensors"
    save_file({name.removeprefix("transformer."): t for name, t in load_file(file).items()}, file)
    other = module_of(plan, 0, dtype=torch.float32, seed=9)
    load_weights(tmp_path, other)
    expected = whole_weights([module])
    assert all(torch.equal(tensor, expected[name]) for name, tensor in whole_weights([other]).items())


class CountingFile:
    """A safetensors file that counts the elements that are read."""

    read = 0

    def __init__(self, file: Any) -> None:
        self._file = file

    def keys(self) -> Any:
        return self._file.keys()

    def get_slice(self, name: str) -> Any:
        found = self._file.get_slice(name)

        class Counting:
            get_shape = staticmethod(found.get_shape)

            def __getitem__(self, place: Any) -> Any:
                part = found[place]
                CountingFile.read += part.numel()
                return part

        return Counting()


def test_only_the_regions_of_a_rank_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("mixtral")
    save_weights(tmp_path, module_of(plan, 0, dtype=torch.float32), plan)
    real = safetensors.safe_open
    monkeypatch.setattr(
        safetensors, "safe_open", lambda *args, **options: CountingFile(real(*args, **options))
    )
    module = module_of(plan_of("mixtral", cuts=(2,)), 1, stage_idx=1, dtype=torch.float32)
    load_weights(tmp_path, module)
    held = sum(local.num_elements for local in module.local_parameters())
    padding = 6 * 32
    assert CountingFile.read == held - padding
    assert held < 0.65 * plan.model.num_params


def break_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("[]")


def take_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")


def widen_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(40)
    save_file(tensors, folder / "model.safetensors")


def cut_file(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (break_index, "must be an object|must hold an object|object"),
        (take_tensor, r"there is no tensor model\.norm\.weight"),
        (widen_tensor, r"model\.norm\.weight has the shape \[40\], the model has \[32\]"),
        (cut_file, "cannot be read"),
        (
            lambda folder: (folder / "model.safetensors").unlink(),
            r"has neither model\.safetensors\.index\.json",
        ),
    ],
)
def test_damaged(tmp_path: Path, damage: Any, expected: str) -> None:
    plan = plan_of("llama")
    module = module_of(plan, 0, dtype=torch.float32)
    save_weights(tmp_path, module, plan)
    damage(tmp_path)
    with pytest.raises(InputError, match=expected):
        load_weights(tmp_path, module)
