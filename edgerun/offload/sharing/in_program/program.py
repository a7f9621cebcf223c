"""A program of whole replies in which a device computes some experts of its layers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from edgerun.backends.base import NO_VALUES, Executable, Values
from edgerun.offload.cache import Step
from edgerun.offload.estimates import Estimates
from edgerun.offload.sharing.device import DeviceError
from edgerun.offload.sharing.in_program.control import SAID
from edgerun.offload.sharing.in_program.learning import Learner
from edgerun.offload.sharing.layer import Layer
from edgerun.offload.sharing.session import Session
from edgerun.offload.sharing.trials import Trials
from edgerun.state import Batch, SequenceStore

TRIES = 4  # layers after a run, that an upload is looked for


class SharedProgram(Executable):
    """Runs a program whose layers give commands, and looks after the device between its runs.

    A device that fails spoils no run: the program computes itself what does not come.
    """

    def __init__(
        self,
        program: Executable,
        layers: Mapping[int, Layer],
        session: Session,
        estimates: Estimates,
        learner: Learner,
        trials: Trials | None,
        *,
        owned: Sequence[Executable] = (),
        is_required: bool = False,
    ) -> None:
        """Takes the program.

        Args:
            program: the processor's.
            layers: that are shared, by number.
            session: of the device.
            estimates: of what runs take.
            learner: of what they did.
            trials: of runs that are shared and of those that are not; None if all are to be.
            owned: programs that are closed with this.
            is_required: the device may not fail.
        """
        self._program, self._layers, self._session = program, layers, session
        self._estimates, self._learner, self._trials = estimates, learner, trials
        self._owned, self._is_required, self._next = owned, is_required, 0
        self._experts = sum(layer.experts for layer in layers.values())
        self._ran: set[bool] = set()  # the ways that were gone: a first call does not count
        self.launches = program.launches

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs the program; see ``Executable``.

        Raises:
            BackendError: the device failed, and nothing may go on in its place.
        """
        session, trials = self._session, self._trials
        rows = max(1, batch.rows)
        is_shared = trials is None or trials.favours_other(rows)
        begin = time.monotonic()
        self._learner.price()
        session.attempt(lambda: session.listen(is_shared=is_shared))
        try:
            outputs = self._program(batch, cache, values)
        except BaseException:  # as by Ctrl-C, between a command and its answer
            if session.control.is_waiting:
                session.cut_off()
            raise
        session.attempt(self._settle)
        if session.failure and self._is_required:
            raise session.given_up()
        if trials is not None:
            if is_shared in self._ran:
                trials.observe(rows, time.monotonic() - begin, rows, is_other=is_shared)
            self._ran.add(is_shared)
        return outputs

    def close(self) -> None:
        """Closes the program, and what belongs to it."""
        for each in (self._program, *self._owned):
            each.close()

    def _settle(self) -> None:
        """After a run: learns of it, and has experts uploaded that are worth it.

        Raises:
            DeviceError: the device failed meanwhile.
        """
        session = self._session
        if fault := session.control.fault:
            said = SAID.get(fault, "").format(patience_s=session.patience_s)
            raise DeviceError(said or session.listener_failure or "it failed")
        begin = time.monotonic()
        layers = self._learner.learn()
        if not layers:
            return
        if len(session.slots) < self._experts:  # else nobody has to leave, ever
            steps = list(self._learner.steps())
            for step, _ in steps:
                session.cache.use(step)
            self._improve([(step, here) for step, here in steps if here])
        self._learner.spend(time.monotonic() - begin, layers)

    def _improve(self, steps: list[tuple[Step, int]]) -> None:
        """Uploads an expert that the processor computed, of one layer after the other."""
        session = self._session
        for _ in range(min(TRIES, len(steps))):
            if session.is_uploading():
                return
            self._next = (self._next + 1) % len(steps)
            step, here = steps[self._next]
            scores = step.scores[:here]
            expert = step.experts[scores.index(max(scores))]
            source = self._layers[step.layer].slots[expert]
            session.improve((step.layer, expert), source, self._estimates.observe_upload)
