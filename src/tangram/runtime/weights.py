"""Weights from and to folders of Hugging Face safetensors.

Reading, a rank opens the files that have its tensors and reads its regions alone. Writing, the ranks of a
stage give theirs, tensor by tensor, to the stage's first rank, which writes shards; so no process ever holds
more than a shard, and nodes need no common file system, although a folder is only whole where they have one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tangram.errors import InputError
from tangram.model.checkpoint import INDEX_NAME, MAX_INDEX_BYTES
from tangram.model.hf import CONFIG_NAME
from tangram.model.json_file import parse_json_object, printable, read_json_text
from tangram.plan.schema import PlanDocument
from tangram.runtime.hf_config import config_of
from tangram.runtime.models.stage import StageModule
from tangram.runtime.parameters import ParameterPart

SINGLE_NAME = "model.safetensors"
SHARD_BYTES = 4 * 1024**3
"""Largest shard, as ``transformers`` writes them, unless one tensor is larger."""

_PREFIXES = ("transformer.", "model.")
"""What checkpoints of a model without its head leave out in front of names."""


def load_weights(folder: Path, module: StageModule) -> None:
    """Fills a stage's parameters, which must have memory, from a folder of safetensors.

    Rows that pad the vocabulary become 0. Every rank calls it by itself.

    Args:
        folder: Holds ``model.safetensors``, or shards with their index.
        module: The stage.

    Raises:
        InputError: A file or tensor is missing, or has another shape than the model.
    """
    files = _Files(folder)
    with torch.no_grad():
        for local in module.local_parameters():
            for part, view in local.views():
                files.read(part, view)


class _Files:
    """The tensors of a folder; files are opened once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, Any] = {}
        self._file_of = self._map()

    def read(self, part: ParameterPart, into: Any) -> None:
        """Reads a region."""
        name = self._known(part.name)
        found = self._file(self._file_of[name]).get_slice(name)
        shape = tuple(found.get_shape())
        if shape[1:] != part.full_shape[1:] or shape[0] > part.full_shape[0]:
            raise InputError(
                f"{name} has the shape {list(shape)}, the model has {list(part.full_shape)}",
                where=str(self._folder),
                hint="these weights are of another model than the plan's",
            )
        (start, stop), rest = part.region[0], part.region[1:]
        stop = min(stop, shape[0])
        count = max(0, stop - start)
        into[count:] = 0
        if count:
            into[:count] = found[(slice(start, stop), *(slice(*interval) for interval in rest))]

    def _known(self, name: str) -> str:
        short = [name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)]
        for candidate in (name, *short):
            if candidate in self._file_of:
                return candidate
        raise InputError(f"there is no tensor {name}", where=str(self._folder))

    def _map(self) -> dict[str, str]:
        index = self._folder / INDEX_NAME
        if index.is_file():
            where = printable(str(index))
            text = read_json_text(index, max_bytes=MAX_INDEX_BYTES)
            found = parse_json_object(text, where=where).get("weight_map")
            if not isinstance(found, Mapping):
                raise InputError("has no object 'weight_map'", where=where)
            return {str(name): str(file) for name, file in found.items()}
        if not (self._folder / SINGLE_NAME).is_file():
            raise InputError(
                f"has neither {INDEX_NAME} nor {SINGLE_NAME}",
                where=str(self._folder),
                hint="give a folder of safetensors; other formats are not read",
            )
        return dict.fromkeys(self._file(SINGLE_NAME).keys(), SINGLE_NAME)

    def _file(self, name: str) -> Any:
        from safetensors import SafetensorError, safe_open

        if name not in self._open:
            path = self._folder / name
            try:
                self._open[name] = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise InputError(f"cannot be read: {error}", where=str(path)) from None
        return self._open[name]


def save_weights(folder: Path, module: StageModule, plan: PlanDocument, group: Any = None) -> None:
    """Writes the whole model as a Hugging Face folder; all ranks of the plan call it together.

    Args:
        folder: Is made where it does not exist; must be the same on the first ranks of all stages for the
            checkpoint to lie in one place.
        module: This rank's stage, with whole weights.
        plan: The plan.
        group: All ranks, on a backend that sends from host memory (gloo); None where there is one rank.
    """
    rank = 0 if group is None else dist.get_rank()
    pieces = _pieces(module)
    everybody = _collected([piece.part for piece in pieces], group)
    mine = next(stage for stage in plan.stages if rank in {slot.rank for slot in stage.ranks})
    before = {part.name for slot in _slots(plan, mine.index) for part in everybody[slot]}
    members = [slot.rank for slot in mine.ranks]
    wanted = _order([everybody[member] for member in members], before)
    writer = _Writer(folder, mine.index) if rank == members[0] else None
    vocab = plan.model.vocab_size if plan.model.padded_vocab_size != plan.model.vocab_size else None
    for name, sources in wanted.items():
        whole = _gathered(name, sources, members, pieces, rank, group)
        if writer is not None:
            rows = vocab if vocab is not None and len(whole) == plan.model.padded_vocab_size else len(whole)
            writer.add(name, whole[:rows])
    written = _collected(writer.close() if writer is not None else [], group)
    if writer is not None:
        _publish(folder, written, writer, plan if rank == 0 else None)
    _collected(None, group)  # nobody goes on before the folder is whole


@dataclass(frozen=True, slots=True)
class _Piece:
    part: ParameterPart
    values: Any


@dataclass(frozen=True, slots=True)
class _Source:
    """Which member of a stage gives which of its pieces."""

    member: int
    place: int
    part: ParameterPart


@dataclass(frozen=True, slots=True)
class _Shard:
    """A file that was written, under a name for the time being.

    Attributes:
        file: That name.
        names: Its tensors.
        num_bytes: Their size.
    """

    file: str
    names: tuple[str, ...]
    num_bytes: int


def _pieces(module: StageModule) -> list[_Piece]:
    return [_Piece(part, view) for local in module.local_parameters() for part, view in local.views()]


def _slots(plan: PlanDocument, index: int) -> Iterator[int]:
    """The ranks of the stages before one: what they write, it does not."""
    for stage in plan.stages:
        if stage.index < index:
            yield from (slot.rank for slot in stage.ranks)


def _order(held: Sequence[Sequence[ParameterPart]], before: Iterable[str]) -> dict[str, list[_Source]]:
    """Returns, for each tensor of a stage, who gives which region: every region once, by its first holder."""
    others = set(before)
    found: dict[str, list[_Source]] = {}
    seen = set()
    for member, parts in enumerate(held):
        for place, part in enumerate(parts):
            if part.name in others or (part.name, part.region) in seen:
                continue
            seen.add((part.name, part.region))
            found.setdefault(part.name, []).append(_Source(member, place, part))
    for name, sources in found.items():
        size = sum(prod(source.part.shape) for source in sources)
        assert size == prod(sources[0].part.full_shape), f"{name} is not held exactly once"
    return found


def _gathered(
    name: str,
    sources: Sequence[_Source],
    members: Sequence[int],
    pieces: Sequence[_Piece],
    rank: int,
    group: Any,
) -> Any:
    """Brings a tensor to the first member of a stage; returns it there, None on the others."""
    is_writer = rank == members[0]
    whole = None
    for source in sources:
        owner = members[source.member]
        if rank == owner:
            values = pieces[source.place].values.cpu().contiguous()
            if not is_writer:
                dist.send(values, members[0], group=group)
        elif is_writer:
            values = torch.empty(source.part.shape, dtype=pieces[0].values.dtype)
            dist.recv(values, owner, group=group)
        if is_writer:
            if whole is None:
                whole = torch.empty(source.part.full_shape, dtype=values.dtype)
            whole[tuple(slice(*interval) for interval in source.part.region)] = values
    return whole


class _Writer:
    """Writes tensors of one stage to files of bounded size."""

    def __init__(self, folder: Path, stage: int) -> None:
        self._folder, self._stage = folder, stage
        self._tensors: dict[str, Any] = {}
        self._num_bytes = 0
        self.shards: list[_Shard] = []
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, tensor: Any) -> None:
        """Takes a tensor; writes those before where it would make the file too large."""
        if self._tensors and self._num_bytes + tensor.nbytes > SHARD_BYTES:
            self._flush()
        self._tensors[name] = tensor.contiguous()
        self._num_bytes += tensor.nbytes

    def close(self) -> list[_Shard]:
        """Writes what is left; returns all files."""
        if self._tensors:
            self._flush()
        return self.shards

    def _flush(self) -> None:
        from safetensors.torch import save_file

        file = f".stage-{self._stage:05}-{len(self.shards):05}.safetensors"
        save_file(self._tensors, self._folder / file, metadata={"format": "pt"})
        self.shards.append(_Shard(file, tuple(self._tensors), self._num_bytes))
        self._tensors, self._num_bytes = {}, 0


def _publish(
    folder: Path, written: Sequence[Sequence[_Shard]], writer: _Writer, plan: PlanDocument | None
) -> None:
    """Gives the files their names, which tell how many there are; the first rank adds index and config."""
    shards = [shard for of_rank in written for shard in of_rank]
    total = len(shards)
    names = {
        shard.file: SINGLE_NAME if total == 1 else f"model-{idx:05}-of-{total:05}.safetensors"
        for idx, shard in enumerate(shards, 1)
    }
    for shard in writer.shards:
        (folder / shard.file).replace(folder / names[shard.file])
    if plan is None:
        return
    if total > 1:
        size = sum(shard.num_bytes for shard in shards)
        places = {name: names[shard.file] for shard in shards for name in shard.names}
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
        _write_json(folder / INDEX_NAME, index)
    else:
        (folder / INDEX_NAME).unlink(missing_ok=True)  # of an earlier checkpoint in the same folder
    _write_json(folder / CONFIG_NAME, config_of(plan))


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _collected(own: Any, group: Any) -> list[Any]:
    if group is None:
        return [own]
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, own, group=group)
    return found
