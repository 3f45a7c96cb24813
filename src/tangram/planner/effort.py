"""How hard the composition tries. Every limit is a count: the same input gives the same plan anywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

_HURRIED_BEAM = 48


@dataclass(frozen=True, slots=True)
class Wide:
    """How hard to look into a problem that may hold a better plan than the best so far.

    Attributes:
        margin_frac: How far above the best closed form a plan may be to be simulated.
        ranked: Plans of one search, best first.
        finalists: Plans of one search that are simulated.
        per_structure: How many of them may differ in options and windows only.
        polish_tasks: Stages times micro-batches that may be simulated to improve plans step by step.
        polish_starts: Plans of different structure to improve.
        listing_labels: Labels of an exhaustive listing before it gives up.
        listing_plans: Plans of the listing that are simulated at most.
    """

    margin_frac: float
    ranked: int
    finalists: int
    per_structure: int
    polish_tasks: int
    polish_starts: int
    listing_labels: int
    listing_plans: int


@dataclass(frozen=True, slots=True)
class Effort:
    """The limits of a search over all micro-batch sizes.

    Attributes:
        beam: Labels per cut of the first, quick search.
        finalists: Plans of the closed-form search that are simulated, per micro-batch size.
        margin_frac: How far above the best closed form a finalist may be.
        easy_labels: Labels of a search with the quick guide before the guide with windows is made.
        levels: Windows that the better guide tells apart.
        label_limit: Labels of one search before it gives up.
        merged_labels: Labels of the merged bound search, before merging; beyond them the guide's bound
            counts.
        wide_micro_batches: Up to so many micro-batches, :meth:`wide` tries its hardest.
        widest, narrowest: What it tries then, and with very many micro-batches.
        quick: Only the beam search: a good plan, no bound. For comparisons and what-ifs.
        quick_sizes: Micro-batch sizes that a quick search looks at from its first plan on; it looks at
            three times as many before it gives up.
    """

    beam: int = 160
    finalists: int = 8
    margin_frac: float = 0.004
    easy_labels: int = 5_000
    levels: int = 8
    label_limit: int = 150_000
    merged_labels: int = 1_000_000
    wide_micro_batches: int = 16
    widest: Wide = Wide(0.08, 2_000, 200, 4, 300_000, 8, 100_000, 3_000)
    narrowest: Wide = Wide(0.004, 64, 12, 4, 300_000, 4, 2_500, 24)
    quick: bool = False
    quick_sizes: int = 3

    def wide(self, num_micro_batches: int) -> Wide:
        """Returns how hard to look into a problem with so many micro-batches.

        With more of them, a simulation takes longer, start and end of the pipeline weigh less, and the closed
        form ranks better: every limit shrinks in proportion, down to the narrowest.
        """
        share = min(1.0, self.wide_micro_batches / num_micro_batches)
        most, least = self.widest, self.narrowest
        return Wide(
            max(least.margin_frac, share * most.margin_frac),
            max(least.ranked, round(share * most.ranked)),
            max(least.finalists, round(share * most.finalists)),
            max(least.per_structure, round(share * most.per_structure)),
            max(least.polish_tasks, round(share * most.polish_tasks)),
            max(least.polish_starts, round(share * most.polish_starts)),
            max(least.listing_labels, round(share * most.listing_labels)),
            max(least.listing_plans, round(share * most.listing_plans)),
        )

    def scouting(self) -> Effort:
        """Returns the effort of looking for a first plan, which only has to be in the right region."""
        return replace(self, beam=min(_HURRIED_BEAM, self.beam))

    def hurried(self) -> Effort:
        """Returns the effort of a what-if: a good plan, quickly."""
        beam, labels = min(_HURRIED_BEAM, self.beam), min(40_000, self.label_limit)
        return replace(self, quick=True, beam=beam, label_limit=labels)
