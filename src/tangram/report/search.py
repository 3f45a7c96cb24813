"""How the plan was found, in words: only counts, which are the same on every machine."""

from __future__ import annotations

from tangram.plan.schema import SearchSection
from tangram.report.words import counted, listed

_REMOVED = "removed_"
_KNOWN = {
    "pairs": ("pair of slice and island portion", "pairs of slice and island portion"),
    "queries": ("query to a parallelizer", "queries to parallelizers"),
    "options": ("stage option", "stage options"),
    "labels": ("label in the composition", "labels in the composition"),
    "finalists_simulated": ("finalist simulated", "finalists simulated"),
}


def search_sentences(search: SearchSection) -> list[str]:
    """Returns one or two sentences."""
    asked = listed(search.parallelizers)
    sizes = search.micro_batches_considered
    tried = f"{counted(len(sizes), 'micro-batch size')} considered"
    if 1 < len(sizes) <= 12:
        tried += f" ({', '.join(map(str, sizes))})"
    removed = {
        key.removeprefix(_REMOVED): value
        for key, value in search.counts.items()
        if key.startswith(_REMOVED) and value
    }
    known = [
        counted(search.counts[key], one, many) for key, (one, many) in _KNOWN.items() if key in search.counts
    ]
    others = [
        f"{key.replace('_', ' ')} {value:,}"
        for key, value in search.counts.items()
        if key not in _KNOWN and not key.startswith(_REMOVED)
    ]
    sentences = [f"Parallelizer {asked}, pruning {search.pruning}: {tried}, {', '.join(known + others)}."]
    if removed:
        texts = [f"{value:,} {key.replace('_', ' ')}" for key, value in removed.items()]
        sentences.append(f"Removed without a query: {listed(texts)}.")
    return sentences
