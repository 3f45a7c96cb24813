"""Metis (Um et al., USENIX ATC 2024): a planner of clusters with several kinds of GPUs, written anew.

From profiles of layers (:mod:`profile`, :mod:`made`) it enumerates orders of the kinds of GPUs, groups of
GPUs and numbers of micro-batches (:mod:`groups`, :mod:`search`), walks from data to tensor parallelism in
every stage, balances layers by speed and memory (:mod:`layers`, :mod:`stages`), and takes what its own cost
(:mod:`cost`) says is fastest. The method is the published one; what is wrong in the published program is
switched off, or on (:mod:`defects`).
"""
