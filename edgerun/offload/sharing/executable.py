"""A layer of experts, computed by the processor and a device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from edgerun.backends.base import NO_VALUES, CompileOptions, Executable, Shape, Values
from edgerun.errors import BackendError
from edgerun.graph.ir import Graph
from edgerun.offload.cache import Step
from edgerun.offload.estimates import Estimates
from edgerun.offload.places import F32, I64, Places, one_hot
from edgerun.offload.schedule import Schedule, Scheduler
from edgerun.offload.sharing.device import DeviceError
from edgerun.offload.sharing.layer import Layer
from edgerun.offload.sharing.session import Session
from edgerun.offload.sharing.tally import Tally
from edgerun.state import Batch, SequenceStore

CHECK_EVERY = 64  # layers; of one of these a result is computed here, too
TEST_ROWS = 3


@dataclass
class _Command:
    """What the device was told to compute.

    Attributes:
        number: of the command.
        experts: whose rows these are.
        places: of the rows.
        first: row of the transfer area.
        slots: of each row's expert.
        sent_s: when it was told so.
    """

    number: int
    experts: I64
    places: I64
    first: int
    slots: list[int]
    sent_s: float = 0.0


class SharedLayer(Executable):
    """Computes a layer on both; if the device fails, all of it on the companion."""

    def __init__(
        self,
        segment: Graph,
        shape: Shape,
        layer: Layer,
        session: Session,
        estimates: Estimates,
        tally: Tally,
        options: CompileOptions,
    ) -> None:
        """Takes what all layers share."""
        self._segment, self._shape, self._options = segment, shape, options
        self._layer, self._session = layer, session
        self._estimates, self._tally = estimates, tally
        self._scheduler = Scheduler(layer.experts)
        self._companion: Executable | None = None
        self._calls = 0
        self.check_every = CHECK_EVERY

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs the layer; see ``Executable``.

        Raises:
            BackendError: the device failed, and nothing may go on in its place.
        """
        node = self._layer.node
        x, routes = (values[name] for name in node.inputs[:2])
        out = self._session.attempt(lambda: self._share(x, routes, cache))
        if out is not None:
            return {node.outputs[0]: out}
        if self._options.required or self._options.fallback is None:
            session = self._session
            raise BackendError(
                f"{session.device.title} failed and nothing may go on in its place: "
                f"{session.failure}"
            )
        if self._companion is None:
            self._companion = self._options.fallback(self._segment, self._shape)
        return self._companion(batch, cache, values)

    def close(self) -> None:
        """Closes the programs of the processor."""
        self._layer.places.close()
        if self._companion is not None:
            self._companion.close()

    def test(self) -> None:
        """Lets the device compute a few rows with the first expert of the layer.

        Raises:
            DeviceError: it fails, or computes something else than the processor.
        """
        session, entry = self._session, (self._layer.number, 0)
        device = session.device
        session.admit(Step(entry[0], (entry[1],), (1.0,)), [entry[1]])
        rows = np.random.default_rng(0).standard_normal((TEST_ROWS, device.sizes.width))
        x = rows.astype(np.float32)[: device.sizes.rows]
        device.x[: len(x)] = x
        slots = [session.slots[entry]] * len(x)
        session.upload(entry, self._layer.slots[0], lambda seconds: device.send(1, 0, slots))
        session.answer()
        results = device.out[: len(x)]
        cache = SequenceStore(self._options.states, 1)
        if not same_bits(results, self._multiply(x, np.zeros(len(x), np.int64), cache)):
            raise DeviceError("it computes other numbers than the processor")

    def _share(self, x: F32, routes: F32, cache: SequenceStore) -> F32:
        """The output of all rows.

        Raises:
            DeviceError: the device failed.
        """
        places = Places.of(routes, int(self._layer.node.attrs["top_k"]))
        if not len(places.rows):
            return np.zeros_like(x)
        schedule, there, cached = self._plan(places)
        results = np.empty((len(places.rows), x.shape[1]), np.float32)
        here = np.setdiff1d(places.active, there)
        begin = time.monotonic()
        commands = self._start(x, places, there, cached)
        self._compute_here(x, places, here, results, cache, begin)
        end = self._collect(places, commands, results, schedule, time.monotonic())
        self._count(schedule, end - begin, len(x), here, there, cached)
        self._check(x, places, there, results, cache)
        self._improve(places, here)
        return places.sum(results)

    def _plan(self, places: Places) -> tuple[Schedule, I64, I64]:
        """The schedule, the experts that the device computes, and those that it has."""
        session, number = self._session, self._layer.number
        entries = [(number, expert) for expert in places.active.tolist()]
        is_cached = np.array([entry in session.arrived for entry in entries])
        costs = self._estimates.costs(places.counts, is_cached)
        room = session.device.sizes.slots - sum(entry in session.slots for entry in entries)
        schedule = self._scheduler(*costs, 0 if session.is_uploading() else room)
        there = places.active[schedule.order]
        scores = np.zeros(self._layer.experts)
        np.maximum.at(scores, places.experts, np.abs(np.nan_to_num(places.weights)))
        step = Step(number, tuple(places.active.tolist()), tuple(scores[places.active].tolist()))
        session.admit(step, there.tolist())
        return schedule, there, there[is_cached[schedule.order]]

    def _start(self, x: F32, places: Places, there: I64, cached: I64) -> list[_Command]:
        """Sends a command for what is cached, and uploads what is not, with a command each."""
        session, number, first = self._session, self._layer.number, 0
        commands: list[_Command] = []
        groups = [cached] if len(cached) else []
        groups += [np.array([expert]) for expert in there[len(cached) :].tolist()]
        for group in groups:
            taken = places.select(group)
            session.device.x[first : first + len(taken)] = x[places.rows[taken]]
            slots = [session.slots[number, expert] for expert in places.experts[taken].tolist()]
            commands.append(_Command(len(commands), group, taken, first, slots))
            first += len(taken)
        for command in commands:
            if command.number == 0 and len(cached):
                self._send(command)
                continue
            expert = int(command.experts[0])
            arrive = partial(self._arrive, command)
            session.upload((number, expert), self._layer.slots[expert], arrive)
        return commands

    def _send(self, command: _Command) -> None:
        command.sent_s = time.monotonic()
        self._session.device.send(command.number, command.first, command.slots)

    def _arrive(self, command: _Command, seconds: float) -> None:
        """An upload has ended; called by the link."""
        self._estimates.upload.observe(np.ones(1, np.int64), seconds)
        self._send(command)

    def _compute_here(
        self, x: F32, places: Places, here: I64, results: F32, cache: SequenceStore, begin: float
    ) -> None:
        taken = places.select(here)
        if len(taken):
            results[taken] = self._multiply(x[places.rows[taken]], places.experts[taken], cache)
            counts = places.counts[np.isin(places.active, here)]
            self._estimates.cpu.observe(counts, time.monotonic() - begin)

    def _multiply(self, x: F32, experts: I64, cache: SequenceStore) -> F32:
        """Rows through an expert each, on the processor."""
        names = self._layer.node.inputs
        routes = one_hot(experts, self._layer.experts)
        batch = Batch.of([0] * len(x), 0, 0, logits="none")
        outputs = self._layer.places(batch, cache, {names[0]: x, names[1]: routes})
        out: F32 = outputs[self._layer.node.outputs[0]]
        return out

    def _collect(
        self,
        places: Places,
        commands: Sequence[_Command],
        results: F32,
        schedule: Schedule,
        end: float,
    ) -> float:
        """Waits for the device; returns when both were done, of which we were at ``end``."""
        before = 0.0
        for _ in commands:
            answer = self._session.answer(schedule.makespan_s)
            command = commands[answer.number]
            taken, first = command.places, command.first
            results[taken] = self._session.device.out[first : first + len(taken)]
            counts = places.counts[np.isin(places.active, command.experts)]
            seconds = answer.ended_s - max(before, command.sent_s)
            self._estimates.device.observe(counts, seconds)
            before = answer.ended_s
        return max(end, before)

    def _count(
        self, schedule: Schedule, seconds: float, rows: int, here: I64, there: I64, cached: I64
    ) -> None:
        tally = self._tally
        tally.layers += 1
        tally.rows += rows
        tally.cached += len(cached)
        tally.uploaded += len(there) - len(cached)
        tally.here += len(here)
        tally.planned_s += schedule.makespan_s
        tally.bound_s += schedule.bound_s
        tally.seconds += seconds

    def _check(
        self, x: F32, places: Places, there: I64, results: F32, cache: SequenceStore
    ) -> None:
        """Computes one result of the device here, too, every now and then.

        Raises:
            DeviceError: it is another one.
        """
        taken = places.select(there)
        self._calls += 1
        if not len(taken) or self._calls % self.check_every != 1 % self.check_every:
            return
        chosen = taken[self._calls // self.check_every % len(taken)][None]
        expected = self._multiply(x[places.rows[chosen]], places.experts[chosen], cache)
        if not same_bits(results[chosen], expected):
            raise DeviceError("it computes other numbers than the processor")
        self._tally.checked += 1

    def _improve(self, places: Places, here: I64) -> None:
        """Uploads an expert that the processor computed, if it is worth more than one there."""
        session, number = self._session, self._layer.number
        if session.is_uploading() or not len(here):
            return
        taken = places.select(here)
        expert = int(places.experts[taken[np.argmax(places.weights[taken])]])
        learn = partial(self._estimates.upload.observe, np.ones(1, np.int64))
        session.improve((number, expert), self._layer.slots[expert], learn)


def same_bits(computed: F32, expected: F32) -> bool:
    """Whether two results are the same, whatever they are."""
    return computed.tobytes() == expected.tobytes()
