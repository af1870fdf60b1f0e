"""What a simulation is of, besides its trace."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvreclaim.scheduling import SchedulerSettings
from kvreclaim.serving.eviction import Eviction
from kvreclaim.serving.memory import Memory
from kvreclaim.serving.outcome import Simulation
from kvreclaim.serving.simulate import Copies, simulate
from kvreclaim.serving.steptime import StepTime
from kvreclaim.serving.trace import Traffic


@dataclass(frozen=True)
class Setup:
    """A pool, its scheduler, a step's time, and what is evicted: equal ones simulate a trace alike.

    The attributes are parameters of `simulate`.
    """

    settings: SchedulerSettings
    step_time: StepTime
    eviction: Eviction | None
    copies: Copies
    memory: Memory

    def run(self, trace: Traffic, interval: float = math.inf) -> Simulation:
        """Simulate a trace; `interval` as of `simulate`."""
        parts = (self.settings, self.step_time, self.eviction, self.copies)
        return simulate(trace, *parts, memory=self.memory, interval=interval)
