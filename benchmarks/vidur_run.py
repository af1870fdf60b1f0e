"""Vidur on a trace, with a linear step time in place of its predictor: run by a Python that has Vidur 0.0.26.

Its predictors are fitted to profiles that it fetches; only the simulator's own speed is of interest here, so
each step takes what `kvreclaim.serving.steptime` says. ``python vidur_run.py TRACE.csv BLOCKS BASE DECODE KV
PREFILL`` prints the seconds that `Simulator.run` took, the steps, and the mean seconds to a request's first
and last token.
"""

from __future__ import annotations

import json
import sys
from statistics import fmean
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from vidur._native.entities import ExecutionTime
from vidur.config.config import (
    CacheConfig,
    ClusterConfig,
    MetricsConfig,
    ReplicaConfig,
    SarathiSchedulerConfig,
    SimulationConfig,
    TraceRequestGeneratorConfig,
)
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
from vidur.simulator import Simulator
from vidur.types import ExecutionTimePredictorType

MOST_AT_ONCE, CHUNK = 256, 2048
DATE = "2023-11-16"  # of each row: Vidur takes the rows of one day


class Linear:
    """A predictor that looks nothing up."""

    steps = 0
    constants = (0.0, 0.0, 0.0, 0.0)

    def __init__(self, replica_config: ReplicaConfig, **others: Any) -> None:  # noqa: ARG002  # Vidur's call
        self.layers = replica_config.num_layers_per_pipeline_stage

    def get_execution_time(self, batch: Any, stage: int) -> ExecutionTime:  # noqa: ARG002  # Vidur's call
        """Return the time of a batch, all of it in one of the parts that Vidur adds up."""
        Linear.steps += 1
        base, decode, kv_token, prefill_token = self.constants
        decodes = batch.num_q_tokens.count(1)
        prefill = sum(batch.num_q_tokens) - decodes
        seconds = base + decode * decodes + kv_token * sum(batch.num_kv_tokens) + prefill_token * prefill
        return ExecutionTime(self.layers, 0.0, 0.0, seconds * 1e3 / self.layers, *[0.0] * 11)


def main(trace: str, blocks: str, *constants: str) -> None:
    """Simulate and print."""
    Linear.constants = tuple(map(float, constants))
    registry = ExecutionTimePredictorRegistry
    registry.unregister(ExecutionTimePredictorType.RANDOM_FORREST)
    registry.register(ExecutionTimePredictorType.RANDOM_FORREST, Linear)
    with TemporaryDirectory() as folder:
        simulator = Simulator(_config(trace, int(blocks), folder))
        for replica in simulator.scheduler._replica_schedulers.values():
            replica._max_batch_size = MOST_AT_ONCE  # else as many as fit at the longest length
        simulator._write_output = lambda: None
        requests = [event._request for _, event in simulator._event_queue]
        begun = perf_counter()
        simulator.run()
        taken = perf_counter() - begun
    found = {
        "seconds": taken,
        "steps": Linear.steps,
        "ttft": fmean(request.prefill_completed_at - request.arrived_at for request in requests),
        "latency": fmean(request.completed_at - request.arrived_at for request in requests),
    }
    print(json.dumps(found))


def _config(trace: str, blocks: int, folder: str) -> SimulationConfig:
    return SimulationConfig(
        cluster_config=ClusterConfig(
            num_replicas=1,
            replica_config=ReplicaConfig(num_pipeline_stages=1, tensor_parallel_size=1),
            cache_config=CacheConfig(num_blocks=blocks, watermark_blocks_fraction=0.0),
            replica_scheduler_config=SarathiSchedulerConfig(batch_size_cap=MOST_AT_ONCE, chunk_size=CHUNK),
        ),
        request_generator_config=TraceRequestGeneratorConfig(
            trace_file=trace, date=DATE, prefill_scale_factor=1, time_scale_factor=1, max_tokens=16_384
        ),
        metrics_config=MetricsConfig(
            write_metrics=False,
            write_json_trace=False,
            enable_chrome_trace=False,
            store_plots=False,
            store_operation_metrics=False,
            store_token_completion_metrics=False,
            store_request_metrics=False,
            store_batch_metrics=False,
            store_utilization_metrics=False,
            output_dir=folder,
        ),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
