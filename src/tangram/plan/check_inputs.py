"""Model, cluster and job of a plan: do the sections agree with themselves?"""

from __future__ import annotations

from tangram.cluster.serial import fingerprint as cluster_fingerprint
from tangram.errors import InputError
from tangram.job import Precision
from tangram.model.params import num_active_params, num_params
from tangram.model.serial import fingerprint as model_fingerprint
from tangram.model.spec import PositionKind
from tangram.plan.violation import Facts, Violation, Violations


def check_inputs(facts: Facts) -> Violations:
    """Checks that the inputs are sound, and that what is derived from them is what they say."""
    yield from _model(facts)
    yield from _cluster(facts)
    yield from _job(facts)


def _model(facts: Facts) -> Violations:
    section, model = facts.doc.model, facts.model
    if model is None:
        return
    expected = model_fingerprint(model)
    if section.fingerprint != expected:
        yield Violation(
            "model-fingerprint",
            "model.fingerprint",
            f"is {section.fingerprint!r}, and the model's shapes give {expected!r}",
        )
    sizes = {"num_params": num_params(model), "num_active_params": num_active_params(model)}
    for name, size in sizes.items():
        if getattr(section, name) != size:
            yield Violation(
                "model-size", f"model.{name}", f"is {getattr(section, name)}, and the shapes give {size}"
            )
    if section.padded_vocab_size < section.vocab_size:
        yield Violation(
            "vocab-too-small",
            "model.padded_vocab_size",
            f"is {section.padded_vocab_size}, below the vocabulary of {section.vocab_size}",
        )
    if facts.atoms is not None and facts.doc.num_atoms != len(facts.atoms):
        yield Violation(
            "num-atoms",
            "num_atoms",
            f"is {facts.doc.num_atoms}; granularity {facts.doc.granularity!r} gives {len(facts.atoms)}",
        )


def _cluster(facts: Facts) -> Violations:
    section = facts.doc.cluster
    sound = True
    for idx, gpu in enumerate(section.gpus):
        if gpu is not facts.parts[gpu.name]:
            sound = False
            yield Violation("gpu-part-twice", f"cluster.gpus[{idx}].name", f"{gpu.name!r} is defined twice")
    for idx, node in enumerate(section.nodes):
        where = f"cluster.nodes[{idx}]"
        if node is not facts.nodes[node.name]:
            sound = False
            yield Violation("node-twice", f"{where}.name", f"{node.name!r} is defined twice")
        if node.gpu not in facts.parts:
            sound = False
            known = ", ".join(facts.parts) or "none"
            yield Violation(
                "gpu-part-unknown", f"{where}.gpu", f"{node.gpu!r} is not defined; known: {known}"
            )
    if not sound:
        return
    expected = cluster_fingerprint(section.to_cluster())
    if section.fingerprint != expected:
        yield Violation(
            "cluster-fingerprint",
            "cluster.fingerprint",
            f"is {section.fingerprint!r}, and the cluster's content gives {expected!r}",
        )


def _job(facts: Facts) -> Violations:
    section = facts.doc.job
    try:
        section.to_job()
    except InputError as error:
        yield Violation("job-invalid", f"job ({error.where})", f"{error.message}; {error.hint}")
    scaling = "dynamic" if section.precision is Precision.FP16 else "none"
    if section.loss_scaling != scaling:
        yield Violation(
            "loss-scaling",
            "job.loss_scaling",
            f"is {section.loss_scaling!r}; {section.precision.value} needs {scaling!r}",
        )
    model = facts.model
    if model and model.position is PositionKind.LEARNED and section.seq_len > model.max_positions:
        yield Violation(
            "sequence-too-long",
            "job.seq_len",
            f"is {section.seq_len}; the model has {model.max_positions} learned positions",
        )
    yield from _precision(facts)


def _precision(facts: Facts) -> Violations:
    precision = facts.doc.job.precision
    for item in facts.stages:
        for gpu in dict.fromkeys(g.name for g in item.gpus):
            supported = facts.parts[gpu].peak_flop_per_s
            if precision not in supported:
                legal = ", ".join(p.value for p in supported) or "none"
                yield Violation(
                    "precision-unsupported",
                    f"{item.where}.ranks",
                    f"{gpu} has no {precision.value}; it supports {legal}",
                )
