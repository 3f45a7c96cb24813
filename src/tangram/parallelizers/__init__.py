"""Parallelizers: the protocols, the built-in planners of slices, and what guards against the others."""
