"""What the intra-operator pass leaves of the legal configurations: fewer, and never without the best."""

from pathlib import Path

import numpy as np
import pytest

from tangram.cluster.islands import build_islands
from tangram.cluster.readers import load_cluster
from tangram.cluster.spec import Portion, portions
from tangram.cost.configs import legal_configs
from tangram.cost.types import FloatArray, StageConfig
from tangram.job import Job, Pins, Precision
from tangram.model.atoms import cut_atoms
from tangram.model.load import load_model
from tangram.parallelizers.alpa.fronts import stage_configs
from tangram.parallelizers.book import StageBook
from tangram.parallelizers.contents import slice_contents
from tangram.parallelizers.totals import stage_totals

CLUSTERS = Path(__file__).parents[2] / "examples" / "clusters"


def books(model: str, cluster: str, precision: Precision, seq_len: int) -> list[StageBook]:
    spec = load_model(model)
    job = Job(1024, seq_len, precision)
    islands = build_islands(load_cluster(str(CLUSTERS / f"{cluster}.yaml")), precision)
    return [StageBook(spec, cut_atoms(spec), island, 16, 64, job) for island in islands]


def best_s(book: StageBook, portion: Portion, configs: list[StageConfig], window: int) -> FloatArray:
    """The fastest of the configurations that hold so many micro-batches, per content of a stage."""
    contents = slice_contents(book.atoms)
    totals = stage_totals(book.model, book.atoms, contents, portion, configs, 16, book.job)
    seconds = totals.forward_s + totals.backward_s + totals.step_s / 64
    fits = totals.room_bytes >= window * totals.activation_bytes
    return np.where(fits, seconds, np.inf).min(axis=1)


@pytest.mark.parametrize(
    ("model", "cluster", "precision", "seq_len"),
    [
        ("gshard-moe-2.4b", "c1-t4-v100-8-8", Precision.FP16, 1024),
        ("mixtral-8x7b", "c2-h100-a100", Precision.BF16, 4096),
    ],
)
def test_the_best_single_stages_are_left(
    model: str, cluster: str, precision: Precision, seq_len: int
) -> None:
    removed = 0
    for book in books(model, cluster, precision, seq_len):
        for portion in portions(book.island)[1:]:
            legal = [c for c in legal_configs(book.model, portion, 16, book.job) if not c.selective]
            kept = stage_configs(book, portion)
            assert [c for c in legal if c in kept] == kept
            removed += len(legal) - len(kept)
            for window in (1, 4, 16):
                of_all, of_kept = (best_s(book, portion, configs, window) for configs in (legal, kept))
                possible = np.isfinite(of_all)
                assert (of_kept[possible] <= 1.0001 * of_all[possible]).all()
    assert removed > 0


def test_degrees_beyond_two_axes_are_rounded_to() -> None:
    """dp 4 with tp 2 and ep 4: the experts' replicas would be a third axis."""
    (book,) = books("gshard-moe-2.4b", "c1-v100-16", Precision.FP16, 1024)
    eight = next(p for p in portions(book.island) if p.num_gpus == 8)
    wanted = StageBook(
        book.model,
        book.atoms,
        book.island,
        16,
        64,
        Job(1024, 1024, Precision.FP16, pins=Pins(dp=4, tp=2, ep=4)),
    )
    assert {(c.dp, c.tp, c.ep) for c in stage_configs(wanted, eight)} == {(4, 2, 4)}
