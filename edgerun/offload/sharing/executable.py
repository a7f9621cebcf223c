"""A layer of experts, computed by the processor and a device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from edgerun.backends.base import NO_VALUES, CompileOptions, Executable, Shape, Values
from edgerun.graph.ir import Graph
from edgerun.offload.cache import Step
from edgerun.offload.divider import Divider, Division, Prices
from edgerun.offload.estimates import Estimates
from edgerun.offload.floors import Busy
from edgerun.offload.places import F32, I64, Places, Sorter
from edgerun.offload.schedule import NANOSECONDS
from edgerun.offload.sharing.cut_expert import CutExpert
from edgerun.offload.sharing.cuts import Cut, cut_of, cuts_one, parts_of, with_cut
from edgerun.offload.sharing.device import CHECK_EVERY, DeviceError
from edgerun.offload.sharing.layer import Layer
from edgerun.offload.sharing.session import Session
from edgerun.offload.sharing.tally import Tally
from edgerun.offload.sharing.trials import TRIAL, Trials
from edgerun.state import Batch, SequenceStore

TEST_ROWS = 3


@dataclass
class _Command:
    """What the device was told to compute.

    Attributes:
        number: of the command.
        experts: whose rows these are.
        places: of the rows.
        first: row of the transfer area.
        slots: of each row's expert; none where it is cut, of which nothing is learned.
        upload_s: what the upload before it took, 0 if there was none.
        arrived_s: when that ended.
    """

    number: int
    experts: Sequence[int]
    places: I64
    first: int
    slots: list[int]
    upload_s: float = 0.0
    arrived_s: float = 0.0


@dataclass(eq=False)
class _Plan:
    """What is computed where, in one call.

    Attributes:
        division: of the active experts.
        step: these, and what they count.
        shares: of each, what the device computes, 0 to 1.
        is_cached: whether it has each.
        there: experts that the device computes, all or in part.
        here: those of which it computes nothing.
        cached: those that it has and computes as a whole.
        uploaded: those that it gets.
        cut: one that it has and computes in part.
        may_cut: whether the schedule would have cut one.
    """

    division: Division
    step: Step
    shares: list[float]
    is_cached: list[bool]
    there: list[int]
    here: list[int]
    cached: list[int]
    uploaded: list[int]
    cut: CutExpert | None
    may_cut: bool


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
        self._parts = parts_of(layer.layout)
        self._sort = Sorter(shape.rows, layer.experts, int(layer.node.attrs["top_k"]))
        prices = Prices(estimates)
        self._divider = Divider(layer.experts, prices)
        self._cutter = Divider(layer.experts, prices, self._parts) if self._parts > 1 else None
        self._companion: Executable | None = None
        self._calls, self._trials = 0, Trials()
        self._cuts: set[tuple[Cut, int]] = set()  # that were made before
        self.check_every, self.rows_name = CHECK_EVERY, layer.node.inputs[0]

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
            raise self._session.given_up()
        if self._companion is None:
            self._companion = self._options.fallback(self._segment, self._shape)
        return self._companion(batch, cache, values)

    def close(self) -> None:
        """Closes the programs of the processor."""
        self._layer.close()
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
        if not same_bits(results, self._layer.multiply(x, np.zeros(len(x), np.int64), cache)):
            raise DeviceError("it computes other numbers than the processor")

    def _share(self, x: F32, routes: F32, cache: SequenceStore) -> F32:
        """The output of all rows.

        Raises:
            DeviceError: the device failed.
        """
        entered = time.monotonic()
        places = self._sort(routes)
        if not places.active:
            return np.zeros_like(x)
        plan = self._plan(places)
        results = np.empty((len(places), x.shape[1]), np.float32)
        cut, here, busy = plan.cut, plan.here, Busy()
        begin = time.monotonic()
        if cut is not None:
            rows_cut = x[places.rows[cut.places]]
            cut.begin(rows_cut)
        commands = self._start(x, places, plan)
        if cut is not None:
            command = _Command(len(commands), [cut.expert], cut.places, 0, [])
            commands.append(command)
            busy = cut.exchange(rows_cut, command.number, cache, plan.division.planned_s)
        started = time.monotonic()
        ended = self._compute_here(x, places, here, results, cache)
        own = None
        if cut is not None:
            own, ended = cut.finish(cache), time.monotonic()
        elif commands:
            self._estimates.start.observe_one(started - begin)
        busy.cpu_s += ended - started
        end = self._collect(places, commands, results, plan, begin, ended, busy)
        if cut is not None and own is not None:
            results[cut.places, cut.cut.columns[1] :] = own
        self._count(places, plan, end - begin, busy)
        is_due = self._check(x, places, plan, results, cache)
        self._improve(plan)
        out = places.sum(results)
        around_s = time.monotonic() - entered - (end - begin)
        self._tally.around_s += around_s
        if commands and not is_due:
            self._estimates.around.observe_one(around_s)
        return out

    def _plan(self, places: Places) -> _Plan:
        """Who computes which of the active experts."""
        session, number = self._session, self._layer.number
        active = places.active
        entries = [(number, expert) for expert in active]
        is_cached = [entry in session.arrived for entry in entries]
        room = 0
        if not session.is_uploading():
            own = sum([entry in session.slots for entry in entries])
            room = session.device.sizes.slots - own
        division, parts, may_cut = self._divide(places, is_cached, room)
        there = [active[index] for index in division.order]
        chosen, cut = {*there}, None
        step = Step(number, tuple(active), places.scores())
        session.admit(step, chosen)
        cached = [active[index] for index in division.order if is_cached[index]]
        uploaded = [active[index] for index in division.order if not is_cached[index]]
        here, shares = [expert for expert in active if expert not in chosen], division.shares
        for index in [n for n, share in enumerate(shares) if 0 < share < parts]:
            where = cut_of(self._layer.layout, shares[index], parts)
            taken = places.select([active[index]])
            cut = CutExpert(self._layer, session, active[index], where, taken)
            cached.remove(active[index])
        each = [share / parts for share in shares]
        return _Plan(division, step, each, is_cached, there, here, cached, uploaded, cut, may_cut)

    def _divide(
        self, places: Places, is_cached: list[bool], room: int
    ) -> tuple[Division, int, bool]:
        """A division, the parts of experts in it, and whether one might be cut."""
        rows, counts = len(places.of_row), places.counts
        division, parts, may_cut = self._divider(counts, is_cached, room), 1, False
        # However an expert is cut, a layer takes no less than the bound.
        gain_s = division.makespan_s - division.bound_s - self._estimates.exchange_s
        if self._cutter is not None and gain_s > 0 and self._trials.weighs(rows):
            finer = self._cutter(counts, is_cached, room)
            if cuts_one(finer.shares, is_cached, self._parts):
                division, parts, may_cut = self._cut(division, finer, rows)
        if division.alone_s < division.planned_s and self._calls % TRIAL:
            return division.alone(), 1, False
        return division, parts, may_cut

    def _cut(self, whole: Division, finer: Division, rows: int) -> tuple[Division, int, bool]:
        """What ``_divide`` returns, of a division without a cut and one that cuts an expert."""
        exchange_s, costs = self._estimates.exchange_s, whole.costs
        schedule, parts = with_cut(costs, whole.schedule, finer.schedule, self._parts, exchange_s)
        if parts == 1 or not self._trials.favours_other(rows):
            return whole, 1, parts > 1
        seconds = schedule.seconds(costs.T / NANOSECONDS, parts, self._estimates.starts)
        order, shares = schedule.order.tolist(), schedule.shares.tolist()
        planned_s = seconds + exchange_s
        return replace(finer, shares=shares, order=order, planned_s=planned_s), parts, True

    def _start(self, x: F32, places: Places, plan: _Plan) -> list[_Command]:
        """Sends a command for what is cached, and uploads what is not, with a command each."""
        session, number, cached = self._session, self._layer.number, plan.cached
        first = 0 if plan.cut is None else plan.cut.rows
        commands: list[_Command] = []
        groups = [cached] if cached else []
        groups += [[expert] for expert in plan.uploaded]
        for group in groups:
            taken = places.select(group)
            rows = x if len(x) == 1 else x[places.rows[taken]]
            session.device.x[first : first + len(taken)] = rows
            slots = [session.slots[number, expert] for expert in places.experts[taken].tolist()]
            commands.append(_Command(len(commands), group, taken, first, slots))
            first += len(taken)
        for command in commands:
            if command.number == 0 and cached:
                self._send(command)
                continue
            expert = command.experts[0]
            arrive = partial(self._arrive, command)
            session.upload((number, expert), self._layer.slots[expert], arrive)
        return commands

    def _send(self, command: _Command) -> None:
        self._session.device.send(command.number, command.first, command.slots)

    def _arrive(self, command: _Command, seconds: float) -> None:
        """An upload has ended; called by the link."""
        self._estimates.upload.observe_one(seconds)
        command.upload_s, command.arrived_s = seconds, time.monotonic()
        self._send(command)

    def _compute_here(
        self, x: F32, places: Places, here: Sequence[int], results: F32, cache: SequenceStore
    ) -> float:
        """Computes the processor's share; returns when that was done."""
        begin = time.monotonic()
        if not here:
            return begin
        taken, counts = places.select(here), places.counts_of(here)
        rows = x.repeat(len(taken), axis=0) if len(x) == 1 else x[places.rows[taken]]
        results[taken] = self._layer.multiply(rows, places.experts[taken], cache)
        end = time.monotonic()
        self._estimates.cpu.observe(counts, end - begin)
        return end

    def _collect(
        self,
        places: Places,
        commands: Sequence[_Command],
        results: F32,
        plan: _Plan,
        begin: float,
        ended: float,
        busy: Busy,
    ) -> float:
        """Waits for the device, of a call that began and that the processor ended at these times.

        Returns:
            when both were done; what device and link took is added to ``busy``.
        """
        estimates, end, free = self._estimates, ended, begin
        for _ in commands:
            answer = self._session.answer(plan.division.planned_s)
            command = commands[answer.number]
            taken, first = command.places, command.first
            results[taken] = self._session.device.out[first : first + len(taken)]
            busy.upload_s += command.upload_s
            busy.device_s += answer.ended_s - answer.began_s
            if command.slots:
                counts = places.counts_of(command.experts)
                estimates.device.observe(counts, answer.ended_s - answer.began_s)
                late_s = answer.began_s - begin - busy.upload_s
                if not command.upload_s:
                    estimates.command.observe_one(late_s)
                elif free <= command.arrived_s:
                    estimates.arrival.observe_one(late_s)
            free, end = answer.ended_s, max(end, answer.ended_s)
        return end

    def _count(self, places: Places, plan: _Plan, seconds: float, busy: Busy) -> None:
        tally, division, rows = self._tally, plan.division, len(places.of_row)
        tally.layers += 1
        tally.rows += rows
        tally.cached += len(plan.there) - len(plan.uploaded)
        tally.uploaded += len(plan.uploaded)
        tally.cut += plan.cut is not None
        tally.with_device += len(plan.there) > 0
        tally.here += len(plan.here)
        tally.planned_s += plan.division.planned_s
        tally.bound_s += division.bound_s
        tally.certified_s += division.certificate_s
        tally.early += seconds < division.certificate_s
        tally.seconds += seconds
        self._estimates.floors.observe(places.counts, plan.shares, plan.is_cached, busy)
        if self._is_new(plan.cut):
            return  # both sides had to compile it
        if plan.cut is not None:
            self._estimates.observe_exchange(seconds - plan.division.planned_s)
        if plan.may_cut:
            self._trials.observe(rows, seconds, len(places), is_other=plan.cut is not None)

    def _is_new(self, cut: CutExpert | None) -> bool:
        return cut is not None and cut.kind not in self._cuts

    def _check(
        self, x: F32, places: Places, plan: _Plan, results: F32, cache: SequenceStore
    ) -> bool:
        """Computes one result of the device here, too, every now and then; whether it did.

        Raises:
            DeviceError: it is another one.
        """
        self._calls += 1
        is_new = self._is_new(plan.cut)
        is_due = self._calls % self.check_every == 1 % self.check_every or is_new
        if not plan.there or not is_due:
            return False
        taken = places.select(plan.there)
        chosen = taken[self._calls // self.check_every % len(taken)][None]
        if plan.cut is not None and is_new:
            chosen = plan.cut.places[:1]
            self._cuts.add(plan.cut.kind)
        expected = self._layer.multiply(x[places.rows[chosen]], places.experts[chosen], cache)
        if not same_bits(results[chosen], expected):
            raise DeviceError("it computes other numbers than the processor")
        self._tally.checked += 1
        return True

    def _improve(self, plan: _Plan) -> None:
        """Uploads an expert that the processor computed, if it is worth more than one there."""
        session, number = self._session, self._layer.number
        if session.is_uploading() or not plan.here:
            return
        scores = dict(zip(plan.step.experts, plan.step.scores, strict=True))
        expert = max(plan.here, key=scores.__getitem__)
        learn = self._estimates.observe_upload
        session.improve((number, expert), self._layer.slots[expert], learn)


def same_bits(computed: F32, expected: F32) -> bool:
    """Whether two results are the same, whatever they are."""
    return computed.tobytes() == expected.tobytes()
