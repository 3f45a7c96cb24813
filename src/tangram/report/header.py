"""The head of a page: the answer in one line, and the question that it answers."""

from __future__ import annotations

from tangram.plan.schema import PlanDocument
from tangram.report.islands import cluster_sentence
from tangram.report.page import Page
from tangram.report.words import band_of, big, counted
from tangram.units import format_duration


def add_header(page: Page, doc: PlanDocument) -> None:
    """Adds the answer in one line, then model, job and cluster."""
    used, total = doc.num_gpus, sum(node.num_gpus for node in doc.cluster.nodes)
    how_many = f"all {total} GPUs" if used == total else f"{used} of {total} GPUs"
    page.heading(
        f"{doc.model.name} on {doc.cluster.name}",
        f"{format_duration(doc.prediction.iteration_time_s)}{band_of(doc)} per step on {how_many}, "
        f"{counted(len(doc.stages), 'stage')}",
    )
    page.facts(
        [
            ("model", _model_sentence(doc)),
            ("job", _job_sentence(doc)),
            ("precision", _precision_sentence(doc)),
            ("optimizer", _optimizer_sentence(doc)),
            ("cluster", cluster_sentence(doc.cluster)),
            *_pins(doc),
        ]
    )


def _model_sentence(doc: PlanDocument) -> str:
    model = doc.model
    active = model.num_active_params
    params = f"{big(model.num_params)} parameters"
    params += f" ({big(active)} active per token)" if active != model.num_params else ""
    ahead = model.num_prediction_layers
    layers = counted(len(model.layers) - ahead, "layer") + (f" and {ahead} for prediction" if ahead else "")
    return f"{params}, {layers}, hidden size {model.hidden_size}"


def _job_sentence(doc: PlanDocument) -> str:
    job = doc.job
    samples, tokens = counted(job.global_batch, "sample"), counted(job.seq_len, "token")
    return f"{samples} of {tokens} per step ({big(job.global_batch * job.seq_len)} tokens)"


def _precision_sentence(doc: PlanDocument) -> str:
    job = doc.job
    scaling = f" with {job.loss_scaling} loss scaling" if job.loss_scaling != "none" else ""
    return f"{job.precision}{scaling}" + (f": {job.precision_reason}" if job.precision_reason else "")


def _optimizer_sentence(doc: PlanDocument) -> str:
    optimizer, weight = doc.job.optimizer, doc.job.precision.element_bytes
    states = optimizer.master_bytes + optimizer.moment_bytes
    total = weight + optimizer.gradient_bytes + states
    name = {"adamw": "AdamW"}.get(optimizer.name, optimizer.name)
    return (
        f"{name}, {total} bytes per parameter: weight {weight}, gradient {optimizer.gradient_bytes}, "
        f"master weight and moments {states}"
    )


def _pins(doc: PlanDocument) -> list[tuple[str, str]]:
    """What the user dictated, if anything."""
    pins = doc.job.pins.model_dump(mode="json", exclude_defaults=True)
    texts = [f"{name.replace('_', '-')} {_pin(value)}".rstrip() for name, value in pins.items()]
    texts += [] if doc.job.overlap_p2p else ["no overlap of transfers"]
    texts += [] if doc.job.free_warmup else ["fixed warm-up"]
    return [("dictated", ", ".join(texts))] if texts else []


def _pin(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "" if value is True else str(value)
