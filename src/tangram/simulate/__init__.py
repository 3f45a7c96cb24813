"""Executes a pipeline's task graph: the referee between plans.

:mod:`~tangram.simulate.fast` ranks (links are private), :mod:`~tangram.simulate.engine` judges (links may
share NICs), :mod:`~tangram.simulate.formulas` bounds, :mod:`~tangram.simulate.trace` writes timelines for
Perfetto. All times are integer nanoseconds, so that sums are exact and ties stable.
"""
