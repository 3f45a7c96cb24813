"""A parallelizer after Alpa (Zheng et al., OSDI 2022): intra-operator and inter-operator parallelism.

Within a stage the operators of a layer are einsums on a logical mesh of two axes, and an optimiser decides
what each axis splits (:mod:`tangram.parallelizers.alpa.intra`); between stages a dynamic programme decides
which layers run on which part of the GPUs (:mod:`tangram.parallelizers.alpa.inter`). docs/parallelizers.md
says what is as in the original, what is left out and what is charged besides.
"""
