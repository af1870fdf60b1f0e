"""Tasks in processes of their own, which leave an interrupt to the process that started them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import TypeVar

Result = TypeVar("Result")


@contextmanager
def running(tasks: Mapping[str, Callable[[], Result]], workers: int) -> Iterator[dict[Future[Result], str]]:
    """Run tasks in so many processes; gives the future of each, with its task's name.

    The block ends when all tasks have. Left by an exception, Ctrl-C among them, it ends the processes at once.
    They print nothing: a terminal's Ctrl-C reaches them all, and counts in this process alone.

    Parameters
    ----------
    tasks
        Functions that can be pickled, by name.
    workers
        Processes, at least 1.
    """
    others = set(active_children())
    # Spawned, not forked: safe beside the threads of other libraries, and alike on every platform.
    pool = ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
    )
    with pool:
        try:
            with _interrupts_held():
                futures = {pool.submit(task): name for name, task in tasks.items()}
            yield futures
        except BaseException:
            for worker in set(active_children()) - others:
                worker.terminate()
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold interrupts back, here until the end, and in the processes that start meanwhile for good.

    These import for a while before they could ignore one. Windows has no such mask.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
