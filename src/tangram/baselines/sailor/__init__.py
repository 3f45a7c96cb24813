"""Sailor (SOSP 2025, github.com/eth-easl/sailor at cf2c8e3): a planner of clusters with mixed GPUs and zones.

Re-implemented from its description and behaviour; only facts are taken over. Three parts, each by itself:
the search (:mod:`~tangram.baselines.sailor.search`, with the choices before it in ``rules`` and its clock in
``clock``), the profiles it plans from (``profile``; from its own files in ``files``, from Tangram's cost
model in ``costed``), and its simulator's estimate of time and memory (``simulator``). ``planner`` puts
them behind Tangram's protocol.

With ``defects`` it answers as the published program does. Without, these are repaired:

* the micro-batches of a step, rounded up, need not add up to the batch: numbers of replicas that do are
  tried, all GPUs as replicas included;
* a doubling of tp for 1.5 times the speed is taken although twice the replicas could give twice; and the
  first type of a mixed cluster, by name, gets its smallest tp: every combination of both rules over the
  types is tried;
* a micro-batch and tp that were not profiled take no time: they are left out;
* pipelines that no single type of GPU could hold by itself are not searched: they are;
* fitted bandwidths are followed beyond the measured sizes, even below zero: there they end;
* the search's memory test takes 2 to 3 GB for what its own prediction calls 5.06 GB: one figure counts;
* the update counts for pipelines of one stage only, or for one layer only: it counts for the slowest stage;
* zones are left out where an all-reduce spans them: the slowest link between them counts;
* the two clocks differ: the simulator's, which is the finer, ranks the plans that the search found.

Not taken over, with or without: cost as objective, budgets and prices (which the published program gets
wrong besides), and its plans of earlier calls, which it takes for answers to later ones. Kept, because
they are its method: equal layers per stage, one micro-batch and one number of replicas for all stages,
equal samples for every replica, a type of GPU only where it could hold every stage, three choices per
stage, no recomputation, no ZeRO.
"""
