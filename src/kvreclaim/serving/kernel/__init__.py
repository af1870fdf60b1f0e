"""The simulator's kernel in numba: structures of arrays, an exact path and an aggregated one."""

from kvreclaim.serving.kernel.cache import compiling, keyed_by_sources
from kvreclaim.serving.kernel.state import Costs, Limits, Requests, Rule, State, new_state

with keyed_by_sources():
    from kvreclaim.serving.kernel.run import run

__all__ = ["Costs", "Limits", "Requests", "Rule", "State", "compiling", "new_state", "run"]
