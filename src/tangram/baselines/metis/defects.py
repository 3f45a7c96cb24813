"""What is wrong in the published program of Metis, one switch each.

They change its answers, so both forms are of interest: the method repaired, and what its users get.
Crashes of the program are not reproduced: node sizes of two digits, stage counts that its first type order
lacks, profiles that lack a point. Nor are the order of its directory listing and Python's hash seed, on which
its winner depends: kinds of GPUs come in the order of their names.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Defects:
    """Which defects are on.

    Attributes:
        one_stage_costed: From the second order of kinds on there is no plan of one stage; instead those of
            the fewest stages above one are there twice, once with the cost of their first stage only.
        fast_network: Links between nodes count as fast as those inside of a node.
        invalid_plans: Plans that lack layers or samples, have a stage without layers or do not fit compete.
        zero_sync: A synchronisation time of zero counts as unknown, and the plan is dropped.
        tensor_groups: The link that carries gradients is looked up for groups of tensor-parallel size.
        first_kind_memory: Memory is looked up for the first kind in the order, whichever GPUs a stage has,
            and a mixed stage's samples are shared out as if it had the GPUs of the whole cluster.
        split_tensor_groups: Plans whose tensor-parallel groups lie across nodes compete, though profiles are
            taken on one node and nothing is charged for the way between two.
        logits_at_cut: A cut in front of the head counts as if logits crossed it.
    """

    one_stage_costed: bool = False
    fast_network: bool = False
    invalid_plans: bool = False
    zero_sync: bool = False
    tensor_groups: bool = False
    first_kind_memory: bool = False
    split_tensor_groups: bool = False
    logits_at_cut: bool = False

    @staticmethod
    def all() -> Defects:
        """Returns the program as published."""
        return Defects(**{field.name: True for field in fields(Defects)})
