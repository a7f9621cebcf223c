"""A device while a model is loaded: what its slots hold, and what becomes of it.

It is tested before it is used, its first failure is answered by a new life with empty slots, and
after the second it is given up: one line says so, and the processor goes on from the layer that
was under way. Failures are a device that says so or ends, an answer or an upload that does not come
in time, and numbers that are not those of the processor.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from edgerun.backends.cpu.experts.layout import SlotLayout
from edgerun.errors import BackendError
from edgerun.forks import each_in_forked_child
from edgerun.offload.cache import Access, ExpertCache, Step
from edgerun.offload.policies.base import Entry
from edgerun.offload.policies.registry import policies
from edgerun.offload.sharing.device import U8, Answer, Device, DeviceError
from edgerun.offload.sharing.in_program.control import Control
from edgerun.offload.sharing.in_program.listener import Listener

logger = logging.getLogger(__name__)
T = TypeVar("T")

MAX_RESETS = 1
ANSWER_S = 30.0
PAUSE_S = 1e-3  # of who waits for uploads
POLICY = "lrfu"


class Session:
    """One device, shared by all layers of a model whose slots are alike.

    Attributes:
        device: what it is.
        layout: of a slot.
        failure: why the device is not used any more, or "".
        resets: how often it began anew after a failure.
        cache: which experts have slots.
        slots: which.
        arrived: those of them whose weights are there.
        due_s: when the next upload that nobody waits for must have ended, 0 if there is none.
        patience_s: for an answer, beside ten times what it should take.
        control: what running programs give commands by.
    """

    def __init__(self, device: Device, layout: SlotLayout, attributes: Mapping[str, Any]) -> None:
        """Takes a device, which ``open`` starts.

        Args:
            device: with slots of this layout.
            layout: of a slot.
            attributes: of the layers.
        """
        self.device, self.layout = device, layout
        self.failure, self.resets, self.patience_s = "", 0, ANSWER_S
        self._attributes = attributes
        self.control = Control()
        self._listener: Listener | None = None
        self._test: Callable[[], None] = lambda: None
        self._fill: Callable[[], None] = lambda: None
        self._is_started = False
        _SESSIONS.add(self)

    def open(self, test: Callable[[], None]) -> None:
        """Starts the device and tests it; a failure is remembered, not raised.

        Args:
            test: uses the device, and raises ``DeviceError`` if it computes something else.
        """
        self._test = test
        self.attempt(lambda: None)

    def attempt(self, work: Callable[[], T]) -> T | None:
        """Returns what ``work`` returns; None if the device failed for good, now or before."""
        while not self.failure:
            try:
                if not self._is_started:
                    self._start()
                return work()
            except (DeviceError, OSError) as error:
                self._recover(error)
            except BaseException:  # as by Ctrl-C
                self.cut_off()
                raise
        return None

    def cut_off(self) -> None:
        """After work that did not end: answers are still to come, which nobody must take."""
        self._stop()

    def takes(self, layout: SlotLayout, attributes: Mapping[str, Any]) -> bool:
        """Whether a layer with such slots and attributes is like the first one."""
        mine, other = ((each.matrices, each.biases, each.nbytes) for each in (self.layout, layout))
        return mine == other and {**self._attributes, "top_k": 1} == {**attributes, "top_k": 1}

    def admit(self, step: Step, experts: Collection[int]) -> Access:
        """Makes experts of a step resident, and gives those that are new a slot each."""
        access = self.cache.admit(step, experts)
        self._give_slots(access)
        return access

    def upload(self, entry: Entry, source: U8, then: Callable[[float], None]) -> None:
        """Queues the upload of an expert into its slot."""
        arrived, slot = self.arrived, self.slots[entry]  # of this life

        def arrive(seconds: float) -> None:
            arrived.add(entry)
            if arrived is self.arrived:
                self.control.put(entry, slot)
            then(seconds)

        self.device.upload(slot, source, arrive)

    def improve(self, entry: Entry, source: U8, then: Callable[[float], None]) -> None:
        """Uploads an expert that nobody waits for, if it is worth more than one that has a slot."""
        access = self.cache.exchange(entry)
        if access is None:
            return
        self._give_slots(access)
        self.due_s = time.monotonic() + self.patience_s

        def arrive(seconds: float) -> None:
            self.due_s = 0.0
            then(seconds)

        self.upload(entry, source, arrive)

    def preload(self, fill: Callable[[], None]) -> None:
        """Fills the slots and waits until they are; so are those of every later life, unwaited.

        Args:
            fill: calls ``fill``.
        """
        self._fill = fill

        def work() -> None:
            if not self.due_s:  # else a new life has begun with it
                fill()
            while self.is_uploading():
                self.device.check()
                time.sleep(PAUSE_S)

        self.attempt(work)

    def fill(
        self,
        entries: Sequence[Entry],
        history: Iterable[Step],
        source: Callable[[Entry], U8],
        then: Callable[[float], None],
    ) -> None:
        """Queues uploads of experts that nobody needs yet, as many as there are slots for.

        Args:
            entries: the likeliest first.
            history: what was needed before.
            source: the weights of one.
            then: see ``upload``.
        """
        missing = self.cache.fill(entries, history)
        self._give_slots(Access(missing, ()))
        arrived, left = self.arrived, iter(range(len(missing) - 1, -1, -1))

        def arrive(seconds: float) -> None:
            then(seconds)
            if arrived is self.arrived:  # else of another life
                self.due_s = time.monotonic() + self.patience_s if next(left) else 0.0

        if missing:
            self.due_s = time.monotonic() + self.patience_s
        for entry in missing:
            self.upload(entry, source(entry), arrive)

    def is_uploading(self) -> bool:
        """Whether an upload is under way that nobody waits for.

        Raises:
            DeviceError: it should have ended.
        """
        due_s = self.due_s
        if due_s and time.monotonic() > due_s:
            raise DeviceError(f"an upload did not end within {self.patience_s:g} s")
        return due_s > 0

    def answer(self, expected_s: float = 0.0) -> Answer:
        """Waits for the next answer.

        Raises:
            DeviceError: it does not come, or is a fault.
        """
        return self.device.answer(self.patience_s + 10 * expected_s)

    def show(self, layer: int, experts: int) -> None:
        """Has programs see which experts of a layer are on the device, from here on."""
        self.control.table(layer, experts)
        for entry in list(self.arrived):
            self.control.put(entry, self.slots[entry])

    def listen(self, *, is_shared: bool) -> None:
        """Before a program runs that gives commands, or is to give none this time."""
        if self._listener is None:
            self._listener = Listener(self.control, self.device, self.answer)
        self.control.open(self.patience_s, is_shared=is_shared)

    def given_up(self) -> BackendError:
        """What to raise where nothing may go on in place of the device, which has failed."""
        return BackendError(
            f"{self.device.title} failed and nothing may go on in its place: {self.failure}"
        )

    @property
    def listener_failure(self) -> str:
        """Why commands of programs are not obeyed any more, or ""."""
        return self._listener.failure if self._listener else ""

    def close(self) -> None:
        """Ends the device; calling it twice is allowed."""
        self._stop()
        self._test = self._fill = lambda: None

    def begin_child(self) -> None:
        """In a forked child: the device is the parent's, and one of its own begins when needed."""
        self.device.forget()
        self._is_started = False
        self.control.end_life()
        self.control.clear()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.forget()

    def _give_slots(self, access: Access) -> None:
        for entry in access.evicted:
            self.arrived.discard(entry)
            self.control.remove(entry)
            self._free.append(self.slots.pop(entry))
        for entry in access.missing:
            self.slots[entry] = self._free.pop()

    def _start(self) -> None:
        count = self.device.sizes.slots
        self.cache = ExpertCache(count, policies()[POLICY]())
        self.slots: dict[Entry, int] = {}
        self.arrived: set[Entry] = set()
        self.due_s = 0.0
        self.control.clear()
        self._free = list(range(count))[::-1]
        self._is_started = True  # whatever of it has begun is to be stopped
        self.device.start()
        self._test()
        self._fill()

    def _recover(self, error: Exception) -> None:
        """Makes room for a new life, or gives the device up when that has been tried."""
        self._stop()
        title = self.device.title
        if self.resets < MAX_RESETS:
            self.resets += 1
            logger.info("%s is started again: %s", title, error)
            return
        self.failure = str(error) or type(error).__name__
        logger.warning(
            "%s failed and starting it again did not help, so the CPU takes over: %s",
            title,
            self.failure,
        )

    def _stop(self) -> None:
        if not self._is_started:
            return
        self._is_started = False
        self.control.end_life()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.wake()
        self.device.stop()
        if listener is not None:
            listener.close()
        self.control.clear()


_SESSIONS = each_in_forked_child(Session.begin_child)


@atexit.register
def _close_all() -> None:
    """Ends devices before the interpreter goes, whose threads must not outlive it."""
    for session in list(_SESSIONS):
        session.close()
