"""Tasks in processes of their own, which leave an interrupt to the one that started them; when it counts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from typing import TypeVar

Result = TypeVar("Result")


def nothing() -> None:
    """Do nothing: what a worker without a state of its own begins with."""


@contextmanager
def running(tasks: Mapping[str, Callable[[], Result]], workers: int) -> Iterator[dict[Future[Result], str]]:
    """Run tasks in so many processes; gives the future of each, with its task's name.

    The block ends when all tasks have, or as that of `worker_pool`.

    Parameters
    ----------
    tasks
        Functions that can be pickled, by name.
    workers
        Processes, at least 1.
    """
    with worker_pool(workers) as pool:
        with interrupts_held():
            futures = {pool.submit(task): name for name, task in tasks.items()}
        yield futures


@contextmanager
def worker_pool(workers: int, begin: Callable[[], None] = nothing) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of so many processes; submit the first tasks, which start them, under `interrupts_held`.

    The block ends when all tasks have. Left by an exception, Ctrl-C among them, it ends the processes at
    once; they end too when this process is killed. They print nothing: a terminal's Ctrl-C reaches them all,
    and counts in this process alone.

    Parameters
    ----------
    workers
        Processes, at least 1.
    begin
        Called first in each process; can be pickled.
    """
    others = set(active_children())
    # Spawned, not forked: safe beside the threads of other libraries, and alike on every platform.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin, initargs=(begin,))
    with pool:
        try:
            yield pool
        except BaseException:
            for worker in set(active_children()) - others:
                worker.terminate()
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold interrupts back, here until the end, and in the processes that start meanwhile for good.

    These import for a while before they could ignore one. The mask is for them: here a library's thread may
    receive the signal all the same, so that its handler is held back as well. Windows has no such mask.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
    if came:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def interrupts_at_stops() -> Iterator[Callable[[], None]]:
    """Hold an interrupt back until the function given is called, or the end; a second one counts at once.

    For a loop over a library's steps: raised inside of one, it may be lost, as in a finalizer, or leave the
    step half done. A handler other than Python's own stays, and so does that of a thread, which has none.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield nothing
        return
    came: list[int] = []

    def note(number: int, _: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    def stop() -> None:
        if came:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    stop()


def _begin(begin: Callable[[], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    begin()


def _end_with_parent() -> None:
    """End this process when the one that started it is gone: else it would wait for tasks for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
