"""The parallelizer ``aceso``: Aceso's search (EuroSys'24), iterative bottleneck alleviation, written anew.

:mod:`~tangram.parallelizers.aceso.search` searches any :mod:`~tangram.parallelizers.aceso.space`:
:mod:`~tangram.parallelizers.aceso.costs` is Tangram's cost model, and the
:mod:`~tangram.parallelizers.aceso.planner` on it is what the name ``aceso`` stands for;
:mod:`~tangram.parallelizers.aceso.accounting` is Aceso's own, to compare searches on equal terms, and
:mod:`~tangram.parallelizers.aceso.optimum` the best there is in it. docs/parallelizers.md names what is left
out.
"""
