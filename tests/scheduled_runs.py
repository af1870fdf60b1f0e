"""Schedulers of a few requests, and runs of them to their end."""

from kvreclaim.eviction_rules import AtPrefillEnd
from kvreclaim.scheduler import Scheduler
from kvreclaim.scheduling import Request, SchedulerSettings


def scheduler(blocks=8, block_size=4, rule=None, requests=(), **limits):
    made = Scheduler(SchedulerSettings(blocks, block_size, **limits), rule)
    for name, (prompt, output) in zip("abcdefgh", requests, strict=False):
        made.add(Request(name, prompt, output))
    return made


def keeping(slots):
    """Evict to so many slots at the end of prefill."""
    return AtPrefillEnd(lambda progress: min(slots, progress.slots))


def run(made):
    """Run to the end with the pool checked at each step; return the steps."""
    steps = []
    for step in made.steps():
        made.pool.check_integrity()
        steps.append(step)
    assert made.pool.free_blocks == made.pool.blocks
    return steps
