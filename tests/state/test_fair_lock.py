"""The lock: one inside, whoever waits is next, and no interruption leaves it taken."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest

from edgerun.state.fair_lock import FairLock
from tests.support.interrupts import forget_signal_stack, repeat_until_interrupted


def is_free(lock: FairLock) -> bool:
    """Whether another thread gets in at once."""
    entered = threading.Event()
    threading.Thread(target=lock.run, args=(entered.set,), daemon=True).start()
    return entered.wait(5)


def is_awaited(lock: FairLock) -> bool:
    """Whether another thread is at the gate, and so the next."""
    if lock._gate.acquire(blocking=False):
        lock._gate.release()
        return False
    return True


def test_it_returns_and_raises_what_the_function_does() -> None:
    lock = FairLock()
    assert lock.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        lock.run(divmod, 7, 0)
    assert is_free(lock)


def test_it_may_be_used_inside_itself() -> None:
    lock = FairLock()
    assert lock.run(lambda: lock.run(lambda: lock.run(divmod, 7, 2))) == (3, 1)
    assert is_free(lock)


def test_one_thread_at_a_time_is_inside() -> None:
    lock, inside, most = FairLock(), [0], [0]

    def count() -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(1e-5)
        inside[0] -= 1

    threads = [
        threading.Thread(target=lambda: [lock.run(count) for _ in range(50)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (inside[0], most[0]) == (0, 1)


def test_who_waits_comes_before_who_comes_back() -> None:
    lock, order = FairLock(), []
    waiter = threading.Thread(target=lock.run, args=(order.append, "waiter"))

    def start_waiter() -> None:
        order.append("first")
        waiter.start()
        while not is_awaited(lock):
            time.sleep(1e-4)

    lock.run(start_waiter)
    lock.run(order.append, "back")
    waiter.join()
    assert order == ["first", "waiter", "back"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals are POSIX")
def test_an_interruption_anywhere_leaves_it_free() -> None:
    lock, rng, stop = FairLock(), random.Random(1), threading.Event()

    def rival() -> None:
        while not stop.is_set():
            lock.run(time.sleep, 1e-5)

    other = threading.Thread(target=rival, daemon=True)
    other.start()
    for _ in range(400):
        repeat_until_interrupted(lambda: lock.run(lock.run, abs, -1), rng, 1e-3)
        assert lock._owner != threading.get_ident()
        assert not lock._inside._is_owned()  # type: ignore[attr-defined]
    stop.set()
    other.join()
    assert is_free(lock)


class Interrupted:
    """A gate at which Ctrl-C comes to who waits."""

    def __enter__(self) -> None:
        raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        pass


def test_who_is_interrupted_while_waiting_takes_nothing_from_who_is_inside() -> None:
    lock, entered, leave = FairLock(), threading.Event(), threading.Event()

    def stay() -> None:
        entered.set()
        leave.wait()
        lock.run(abs, -1)  # it would wait for the waiter, which waits for it

    inside = threading.Thread(target=lock.run, args=(stay,), daemon=True)
    inside.start()
    entered.wait()
    gate, lock._gate = lock._gate, Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        lock.run(abs, -1)
    lock._gate = gate
    waiter = threading.Thread(target=lock.run, args=(abs, -1), daemon=True)
    waiter.start()
    while not is_awaited(lock):
        time.sleep(1e-4)
    leave.set()
    for thread in (inside, waiter):
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals are POSIX")
@pytest.mark.timeout(20)
def test_a_handler_that_runs_while_its_thread_waits_comes_in() -> None:
    lock, entered, leave = FairLock(), threading.Event(), threading.Event()
    order: list[str] = []

    def stay() -> None:
        entered.set()
        leave.wait()

    def interrupt() -> None:
        while not is_awaited(lock):
            time.sleep(1e-4)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def handle(*_: object) -> None:
        leave.set()
        lock.run(order.append, "handler")

    forget_signal_stack()
    before = signal.signal(signal.SIGUSR1, handle)
    threads = [threading.Thread(target=lock.run, args=(stay,)), threading.Thread(target=interrupt)]
    try:
        threads[0].start()
        entered.wait()
        threads[1].start()
        lock.run(order.append, "waiter")
    finally:
        leave.set()
        for thread in threads:
            thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert order == ["handler", "waiter"]
    assert is_free(lock)


def test_who_has_come_in_is_inside_before_the_next_may_wait() -> None:
    lock, owners = FairLock(), []

    class Watched:
        """A gate behind which a handler would wait for the next, if it were not inside."""

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            owners.append(lock._owner)

    lock._gate = Watched()  # type: ignore[assignment]
    lock.run(abs, -1)
    assert owners == [threading.get_ident()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it has threads, on purpose
def test_a_forked_process_does_not_wait_for_its_parents_threads() -> None:
    lock, entered, leave = FairLock(), threading.Event(), threading.Event()

    def stay() -> None:
        entered.set()
        leave.wait()

    threads = [threading.Thread(target=lock.run, args=(stay,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    entered.wait()
    child = os.fork()
    if child == 0:  # an assertion that fails would go on with the parent's tests
        signal.alarm(20)
        os._exit(lock.run(int, 42))
    leave.set()
    for thread in threads:
        thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
