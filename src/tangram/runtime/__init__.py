"""Trains the model of a plan on the ranks of the plan: the reference executor, on PyTorch.

Every stage has its own degrees, so no mesh spans the model: a stage has its own groups of ranks, and
neighbours send each other slices. Like the profiler, this room imports torch (the extra ``train``); nobody
imports its modules before a run starts.
"""
