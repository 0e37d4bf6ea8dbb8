"""The figures of `top` for Prometheus. This table has every name that an exporter gives.

Names, labels and units are as Prometheus wants them: bytes, counters end in ``_total``. Label
``UUID`` is as NVIDIA's exporter has it; none is called job, pod or instance, which belong to
the server that collects."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .top import Gpu, Overview, Process, TenantSum

__all__ = ["METRICS", "Metric", "Sample", "samples", "text", "write"]

_GPU = ("UUID", "gpu", "modelName")
# `slot` tells two containers' process 1 of one label apart: of samples that are alike in all
# labels a collector refuses the whole file.
_PROCESS = ("UUID", "slot", "pid", "uid", "label", "tenant", "claimed", "state")
_PLACE = ("slurm_job_id", "k8s_namespace", "k8s_pod")
_TENANT = ("UUID", "tenant")


@dataclass(frozen=True)
class Metric:
    """One name: its kind for Prometheus, its meaning, its labels, and where its value is."""

    name: str
    kind: str  # gauge or counter
    meaning: str
    labels: tuple[str, ...]
    value: Callable[..., float | None]  # of a Process, a Gpu or a TenantSum


def _of_process(
    name: str, kind: str, meaning: str, value: Callable[..., float | None]
) -> Metric:
    return Metric(f"torcharena_process_{name}", kind, meaning, _PROCESS + _PLACE, value)


METRICS = (
    _of_process("reserved_bytes", "gauge", "Device memory that the process holds.",
                lambda one: one.reserved),
    _of_process("unused_bytes", "gauge", "Of it, without a live block when last told.",
                lambda one: one.unused),
    _of_process("peak_bytes", "gauge", "The most that it has held.", lambda one: one.peak),
    _of_process("spilled_bytes", "gauge", "What it holds in host memory instead.",
                lambda one: one.spilled),
    _of_process("cap_bytes", "gauge", "The cap on the process, the least of all sources.",
                lambda one: one.cap),
    _of_process("refused_total", "counter", "Requests of growth that a shared cap refused.",
                lambda one: one.refused),
    _of_process("started_seconds", "gauge", "When it was first counted, since 1970.",
                lambda one: one.started),
    Metric("torcharena_tenant_reserved_bytes", "gauge",
           "Device memory that the tenant's living processes hold together.",
           _TENANT, lambda one: one.reserved),
    Metric("torcharena_tenant_cap_bytes", "gauge", "The cap on the tenant.",
           _TENANT, lambda one: one.cap),
    Metric("torcharena_device_counted_bytes", "gauge",
           "Device memory that the processes hold together which load torcharena.",
           _GPU, lambda one: one.counted),
    Metric("torcharena_device_cap_bytes", "gauge", "The cap on all of them together.",
           _GPU, lambda one: one.cap),
    Metric("torcharena_device_total_bytes", "gauge", "The device's memory.",
           _GPU, lambda one: one.total),
    Metric("torcharena_device_used_bytes", "gauge", "What anybody holds of it, by NVML.",
           _GPU, lambda one: one.used),
    Metric("torcharena_device_unaccounted_bytes", "gauge",
           "Used and not counted: contexts, and processes that do not load torcharena.",
           _GPU, lambda one: one.unaccounted),
    Metric("torcharena_device_ledger_ok", "gauge",
           "1: the GPU's ledger can be read; 0: it is not to be trusted or understood.",
           _GPU, lambda one: 0 if one.problem else 1),
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One value of a metric; ``labels`` are in the metric's order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def samples(view: Overview) -> Iterator[Sample]:
    """Every value there is, by metric in the table's order. What is not known is left out."""
    for metric in METRICS:
        for gpu in view.gpus:
            for one in _owners(metric, gpu):
                value = metric.value(one)
                if value is not None:
                    yield Sample(metric, _labels(metric, gpu, one), value)


def _owners(metric: Metric, gpu: Gpu) -> Iterable[Process | Gpu | TenantSum]:
    if metric.labels == _GPU:
        return [gpu]
    return gpu.tenants if metric.labels == _TENANT else gpu.processes


def _labels(metric: Metric, gpu: Gpu, one: Process | Gpu | TenantSum) -> tuple[str, ...]:
    if isinstance(one, Gpu):
        index = "" if gpu.index is None else str(gpu.index)
        return gpu.uuid, index, gpu.name or ""
    if isinstance(one, TenantSum):
        return gpu.uuid, one.name
    claimed = "true" if one.claimed else "false"
    whose = (str(one.slot), str(one.pid), str(one.uid))
    found = (*whose, one.label, one.tenant, claimed, one.state)
    return gpu.uuid, *found, one.slurm_job_id, one.k8s_namespace, one.k8s_pod


def text(view: Overview) -> str:
    """The text format, of which Prometheus reads 0.0.4."""
    lines: list[str] = []
    last: Metric | None = None
    for sample in samples(view):
        metric = sample.metric
        if metric is not last:
            lines.append(f"# HELP {metric.name} {metric.meaning}")
            lines.append(f"# TYPE {metric.name} {metric.kind}")
            last = metric
        pairs = ",".join(
            f'{name}="{_escaped(value)}"'
            for name, value in zip(metric.labels, sample.labels, strict=True)
        )
        lines.append(f"{metric.name}{{{pairs}}} {_number(sample.value)}")
    return "".join(f"{line}\n" for line in lines)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def write(path: str, view: Overview) -> None:
    """Writes the text beside ``path`` and renames it, so that no reader sees half of it. It
    is readable by all, as node_exporter runs as another user. Raises OSError."""
    folder = os.path.dirname(os.path.abspath(path))
    fd, own = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=folder)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text(view))
            os.fchmod(file.fileno(), 0o644)
        os.rename(own, path)
    except BaseException:
        os.unlink(own)
        raise
