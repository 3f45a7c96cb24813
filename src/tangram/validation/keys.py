"""The key of a configuration: equal for repeats of one, so that they stay on one side of a fold."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from tangram.model.serial import fingerprint
from tangram.validation.run import Run


def configuration_key(run: Run, without: frozenset[str] = frozenset()) -> str:
    """Returns 16 hexadecimal digits of everything that describes a configuration.

    Args:
        run: The run; file, line, source, the model's name and all measurements are left out.
        without: Groups of fields to leave out: ``saving``, ``software``, ``vpp``, ``zero``. For sources that
            print them for some rows of one configuration and not for others.
    """
    degrees = run.degrees
    parts: dict[str, object] = {
        "hardware": [
            [(h.gpu.name, h.gpus_per_node, h.link_domain) for h in row] for row in run.hardware.hosts
        ],
        "network": [[(h.link_bytes_per_s, h.nic_bytes_per_s) for h in row] for row in run.hardware.hosts],
        "model": (fingerprint(run.model), run.mtp_layers),
        "tuning": run.tuning.value,
        "batch": (run.seq_len, run.global_batch, run.micro_batch),
        "degrees": (
            degrees.dp,
            degrees.tp,
            degrees.pp,
            degrees.cp,
            degrees.ep,
            degrees.expert_tp,
            degrees.experts_per_rank,
        ),
        "vpp": (degrees.vpp, degrees.chunk_group),
        "layers": () if "vpp" in without else run.layers_per_stage,
        "zero": (degrees.zero, degrees.fsdp, degrees.shard_ranks),
        "numbers": repr(run.numbers),
        "saving": repr(run.saving),
        "method": run.software.method,
        "software": repr(replace(run.software, environment=None)),
    }
    if run.software.blocking_transfers or run.software.headless:
        parts["engine"] = (run.software.blocking_transfers, run.software.headless)
    text = repr([(name, value) for name, value in parts.items() if name not in without])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
