"""When an interrupt counts: at a stop, whatever a library's step did with it."""

import signal
import threading

import pytest

from kvreclaim.processes import interrupts_at_stops


@pytest.fixture(autouse=True)
def _default_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt():
    signal.raise_signal(signal.SIGINT)


def losing(step):
    """A library's step that loses what is raised in it."""
    try:
        step()
    except BaseException:
        return True
    return False


def test_an_interrupt_counts_at_the_next_stop_and_not_before():
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_at_stops() as stop:
        for number in range(5):
            stop()
            done.append((number, losing(interrupt if number == 2 else int)))
    assert done == [(0, False), (1, False), (2, False)]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_after_the_last_stop_counts_at_the_end():
    with pytest.raises(KeyboardInterrupt), interrupts_at_stops():
        losing(interrupt)


def test_a_second_interrupt_does_not_wait():
    with pytest.raises(KeyboardInterrupt), interrupts_at_stops():
        interrupt()
        assert losing(interrupt)


def test_what_goes_wrong_is_not_replaced_by_an_interrupt():
    with pytest.raises(ValueError, match="wrong"), interrupts_at_stops():
        interrupt()
        raise ValueError("wrong")


def test_someone_elses_handler_stays():
    came = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    with interrupts_at_stops() as stop:
        interrupt()
        stop()
    assert came == [signal.SIGINT]


def test_a_thread_changes_no_handler():
    seen = []

    def work():
        with interrupts_at_stops() as stop:
            stop()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
