"""The counters of the ledger as Prometheus metrics, beside vLLM's own.

The engine may run in another process than the server that is scraped, so that the counters are read from the
records folder, at each scrape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from kvreclaim.runtimes.vllm.ledger import BUCKETS, Counters, read_counters


class LedgerCollector:
    """Reads an engine's counters from its records folder.

    Parameters
    ----------
    folder
        The option's ``records``.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def describe(self) -> list[Any]:
        """Return the metrics' names without values."""
        return list(_families(Counters()))

    def collect(self) -> Iterator[Any]:
        """Return the metrics as they stand."""
        return _families(read_counters(self._folder))


_registered: list[LedgerCollector] = []


def export(folder: str) -> None:
    """Show the counters of a records folder on this process's registry, in place of those shown before."""
    while _registered:
        REGISTRY.unregister(_registered.pop())
    collector = LedgerCollector(folder)
    REGISTRY.register(collector)
    _registered.append(collector)


def _families(counters: Counters) -> Iterator[Any]:
    yield _counter("kvreclaim_blocks_freed", "KV blocks that evictions gave back", counters.blocks_freed)
    yield _counter("kvreclaim_pairs_moved", "KV pairs that packs copied", counters.pairs_moved)
    yield _counter("kvreclaim_bytes_moved", "Bytes that packs copied", counters.bytes_moved)
    buckets = [(str(end), count) for end, count in zip(BUCKETS, counters.buckets, strict=True)]
    buckets.append(("+Inf", counters.evictions))
    seconds = HistogramMetricFamily("kvreclaim_evict_seconds", "Seconds of an eviction, scores included")
    seconds.add_metric([], buckets, counters.seconds)
    yield seconds
    stranded = GaugeMetricFamily(
        "kvreclaim_stranded_ratio", "Dead share of the filled KV pairs that are held"
    )
    if counters.stranded_ratio is not None:
        stranded.add_metric([], counters.stranded_ratio)
    yield stranded


def _counter(name: str, help_text: str, value: int) -> CounterMetricFamily:
    return CounterMetricFamily(name, help_text, value=value)
