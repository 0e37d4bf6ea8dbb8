"""`torcharena metrics --listen`: the figures over HTTP, by prometheus-client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from . import metrics
from .top import Overview

__all__ = ["address", "collector", "serve"]


def address(text: str) -> tuple[str, int]:
    """Address and port of ``ADDR:PORT``, ``:PORT`` or ``PORT``: the loopback unless told.
    Raises ValueError."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isascii() or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError(
            f"{text!r}: no address (accepted: 127.0.0.1:9445, [::1]:9445, :9445, which is the "
            "loopback's, 0.0.0.0:9445 for every network)"
        )
    return host, int(port)


def collector(look: Callable[[], Overview]) -> Any:
    """What prometheus-client asks at each visit. Raises ImportError."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    class Collector:
        def collect(self) -> Iterator[Any]:
            families: dict[str, Any] = {}
            for sample in metrics.samples(look()):
                metric = sample.metric
                kind = (
                    CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                )
                family = families.setdefault(
                    metric.name, kind(metric.name, metric.meaning, labels=metric.labels)
                )
                family.add_metric(sample.labels, sample.value)
            yield from families.values()

    return Collector()


def serve(
    where: tuple[str, int],
    look: Callable[[], Overview],
    started: Callable[[int], None] | None = None,
) -> None:
    """Answers until it is interrupted; ``started`` hears the port. Raises ImportError where
    prometheus-client is missing, OSError where the address cannot be had."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise ImportError(
            "--listen needs prometheus-client: pip install 'torcharena[metrics]' "
            "(--textfile does not)"
        ) from None
    registry = CollectorRegistry()
    registry.register(collector(look))
    server, _ = start_http_server(where[1], addr=where[0], registry=registry)
    if started is not None:
        started(server.server_port)
    while True:
        time.sleep(3600)
