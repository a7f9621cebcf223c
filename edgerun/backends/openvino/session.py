"""OpenVINO and one of its devices while a model is loaded.

A device that fails is given up for good, and one line says so: pages hold all that was computed,
so the companion goes on from the same step. There is nothing to reset that OpenVINO would offer.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
import weakref
from collections.abc import Callable
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.figures import Handover, Report
from edgerun.backends.openvino.devices import INSTALL, Config, Device
from edgerun.backends.openvino.mirror import Mirror
from edgerun.backends.openvino.network import Request, Tally
from edgerun.backends.openvino.obstacles import unlisted
from edgerun.errors import BackendError
from edgerun.forks import each_in_forked_child, in_forked_child
from edgerun.immortal import keep_for_ever
from edgerun.kernels.host.memory import available_memory
from edgerun.limited import run_limited
from edgerun.telemetry import decline_telemetry

logger = logging.getLogger(__name__)

SECONDS = 60.0  # after which a call is not answered any more
WAIT_MS = 100  # for an answer, between two looks at whether Ctrl-C was pressed
FAILURES = (RuntimeError, TimeoutError, MemoryError, BackendError)
# What a compiled network depends on, of what devices say.
PROPERTIES = (
    "FULL_DEVICE_NAME",
    "DEVICE_ARCHITECTURE",
    "OPTIMIZATION_CAPABILITIES",
    "NPU_DRIVER_VERSION",
    "NPU_COMPILER_VERSION",
    "GPU_DEVICE_ID",
    "GPU_UARCH_VERSION",
)
PLACE = re.compile(r"^(Exception from|Check '.*' failed at|\[ ?[A-Z]+ ?\]) ?\S*?:?\s*")


class Session:
    """The device, shared by all programs of a model.

    Attributes:
        device: what was asked for.
        threads: for a device that is the processor.
        failure: why it is not used any more, or "".
        tallies: what its networks did.
        mirror: what all its networks read of keys and values.
    """

    def __init__(self, device: Device, threads: int) -> None:
        """Opens nothing before the first network is compiled."""
        decline_telemetry()
        self.device, self.failure = device, ""
        self.tallies: list[Tally] = []
        self.mirror = Mirror()
        self.threads = threads
        self._is_slow = False
        self._releases: list[Callable[[], None]] = []
        self._accepted: Config | None = None
        self._requests: weakref.WeakSet[_Request] = weakref.WeakSet()
        self._are_kept = False
        _SESSIONS.add(self)

    def configurations(self) -> list[Config]:
        """Options to compile with, those that were found to be right first."""
        return sorted(self.device.configurations, key=lambda config: config != self._accepted)

    def accept(self, config: Config) -> None:
        """Remembers options with which a network computed the right numbers."""
        self._accepted = config

    def compile(self, model: Any, config: Config) -> Request:
        """Compiles a model of OpenVINO's.

        Raises:
            RuntimeError: the device refuses it.
        """
        options = self._options(config)
        compile_ = self.core.compile_model
        return self._request_of(lambda: compile_(model, self.device.plugin, options))

    def load(self, blob: bytes, config: Config) -> Request:
        """Loads a compiled network.

        Raises:
            RuntimeError: the device refuses it.
        """
        options, load = self._options(config), self.core.import_model
        return self._request_of(lambda: load(BytesIO(blob), self.device.plugin, options))

    def _request_of(self, compile_: Callable[[], Any]) -> Request:
        request = _Request(run_limited(compile_))
        self._requests.add(request)
        return request

    def check_device(self) -> None:
        """Asks OpenVINO for the device: its files may be here, and it may still find none.

        What a compiler says without one names a library that nobody knows.

        Raises:
            BackendError: OpenVINO cannot be loaded, or lists no such device.
        """
        core = self.core
        if not self.device.memory:  # it is the processor
            return
        kind = self.device.plugin.partition(".")[0]
        try:
            listed = core.get_property(kind, "AVAILABLE_DEVICES")
        except RuntimeError as error:
            raise BackendError(f"{self.device.title} does not run here: {reason(error)}") from error
        if not listed or (self.device.number and str(self.device.number) not in listed):
            raise BackendError(
                f"{self.device.title} does not run here: {unlisted(kind, self.device.name, listed)}"
            )

    def check_memory(self, weight_bytes: int) -> None:
        """Looks whether weights have room in the memory that the device computes from.

        Raises:
            BackendError: they have not.
        """
        room_bytes = self._room_bytes()
        if room_bytes is not None and weight_bytes > room_bytes:
            raise BackendError(
                f"{self.device.title} cannot run this model: its weights would take "
                f"{weight_bytes / 1e9:.2f} GB there, and {room_bytes / 1e9:.2f} GB of memory are "
                "there for it; export it with fewer bits, or leave it to the CPU"
            )

    def _room_bytes(self) -> int | None:
        """Of the device, or free for a device that is the processor; None if nobody says."""
        if not self.device.memory:
            return available_memory()
        try:
            return int(self.core.get_property(self.device.plugin, self.device.memory))
        except RuntimeError:  # a driver that does not say
            return None

    @property
    def core(self) -> Any:
        """OpenVINO itself."""
        return openvino_core()

    def identity(self) -> list[str]:
        """What compiles and runs networks: versions of OpenVINO, driver and compiler."""
        import openvino

        properties = [openvino.__version__, self.device.title]
        for name in PROPERTIES:
            try:
                properties.append(f"{name}: {self.core.get_property(self.device.plugin, name)}")
            except RuntimeError:
                properties.append(f"{name}: none")
        return properties

    def _options(self, config: Config) -> dict[str, Any]:
        threads = {"INFERENCE_NUM_THREADS": self.threads} if self.device.threads else {}
        return {**config, **threads}

    def handover(self) -> Handover:
        """What moving keys and values took so far."""
        return Handover(
            sum(tally.moving_s for tally in self.tallies),
            sum(tally.overlapped_s for tally in self.tallies),
        )

    def report(self) -> Report | None:
        """What the networks did; None if nothing ran."""
        ran = [tally for tally in self.tallies if tally.calls]
        if not ran:
            return None
        rows = [
            {
                "network": str(tally.extent),
                "calls": tally.calls,
                "tokens": tally.tokens,
                "ms a call": round(1e3 * tally.seconds / tally.calls, 2),
                "of it moving": f"{(tally.moving_s - tally.overlapped_s) / tally.seconds:.0%}",
                "ready in s": round(tally.compile_s, 2),
            }
            for tally in ran
        ]
        notes = [f"the device is not used any more: {self.failure}"] if self.failure else []
        return Report(f"{self.device.title}, {self.device.description}: measured", rows, notes)

    def warn_slow(self, seconds: float) -> None:
        """Warns once that its compiler takes longer than so many seconds."""
        if not self._is_slow:
            self._is_slow = True
            logger.warning(
                "%s still compiles%s, so the CPU computes meanwhile",
                self.device.title,
                f" after {seconds:.0f} s" if seconds else "",
            )

    def on_failure(self, release: Callable[[], None]) -> None:
        """Calls something when the device is given up: its networks are of no use any more."""
        self._releases.append(release)

    def give_up(self, error: Exception, *, is_required: bool = False) -> None:
        """Uses the device no more, and says so unless an error will.

        Memory that it needed is given back, except of one that does not answer: it may still read
        and write there, and OpenVINO would wait for it.
        """
        self.failure = reason(error)
        if isinstance(error, TimeoutError):
            self.keep_networks()
        else:
            self.release()
        if not is_required:
            logger.warning("%s failed, so the CPU goes on: %s", self.device.title, self.failure)

    def keep_networks(self) -> None:
        """Has no network destroyed any more, whoever drops it: OpenVINO would wait for its end."""
        self._are_kept = True
        for request in list(self._requests):
            keep_for_ever(request)

    def settle(self) -> None:
        """Waits for what Ctrl-C has cancelled, before networks go; if it does not end, keeps them.

        OpenVINO would wait for it without an end.
        """
        if self._are_kept:
            return
        try:
            for request in list(self._requests):
                request.settle()
        except TimeoutError:
            self.keep_networks()
        except BaseException:  # Ctrl-C again
            self.keep_networks()
            raise

    def begin_child(self) -> None:
        """In a forked child: the threads that end what was begun are the parent's alone."""
        self.keep_networks()
        self.failure = self.failure or "a forked process has none of OpenVINO's threads"

    def release(self) -> None:
        """Gives back all networks, and what they read of keys and values."""
        releases, self._releases = self._releases, []
        for release in releases:
            release()
        self.mirror = Mirror()


_has_lost_threads = False  # of OpenVINO's, which a fork leaves with the parent


def _lose_threads() -> None:
    global _has_lost_threads
    _has_lost_threads = _has_lost_threads or _core.cache_info().currsize > 0


in_forked_child(_lose_threads)
_SESSIONS = each_in_forked_child(Session.begin_child)


def openvino_core() -> Any:
    """OpenVINO itself, which takes a second to import; one for the whole process, until its end.

    When the last one goes, OpenVINO 2026.4 unloads its plug-in for CPUs, and with it the memory
    that signal handlers run on, where it provided that: the next Ctrl-C would end the process.

    Raises:
        BackendError: it cannot be loaded, or its threads are another process's.
    """
    if _has_lost_threads:
        raise BackendError(
            "OpenVINO was in use before this process was forked, and compiles nothing in it: load "
            "the model in a process that is started anew (multiprocessing's 'spawn')"
        )
    return _core()


@cache
def _core() -> Any:
    decline_telemetry()
    try:
        import openvino

        return openvino.Core()
    except (ImportError, RuntimeError) as error:
        raise BackendError(
            f"OpenVINO cannot be loaded ({reason(error)}): {INSTALL} --force-reinstall"
        ) from error


class _Request:
    """One compiled network's only request; see ``Request``."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        self._outputs = range(len(compiled.outputs))
        self._inputs: list[NDArray[Any]] = []  # an output may be an input's memory
        self._is_started = False

    def start(self, arrays: list[NDArray[Any]]) -> None:
        from openvino import Tensor

        self.settle()
        self._inputs = arrays
        for index, array in enumerate(arrays):
            self._request.set_input_tensor(index, Tensor(array, shared_memory=True))
        self._is_started = True
        self._request.start_async()

    def settle(self) -> None:
        """Waits for what was given up: the NPU's partitioner computes on when it is cancelled.

        Raises:
            TimeoutError: it does not end.
        """
        if self._is_started:
            with contextlib.suppress(RuntimeError):  # it "was canceled"
                self._await_end()
            self._is_started = False

    def has_ended(self) -> bool:
        return bool(self._request.wait_for(0))

    def cancel(self) -> None:
        self._request.cancel()

    def wait(self) -> list[NDArray[np.float32]]:
        self._await_end()
        self._is_started = False
        return [self._request.get_output_tensor(index).data for index in self._outputs]

    def _await_end(self) -> None:
        end = time.monotonic() + SECONDS
        while not self._request.wait_for(WAIT_MS):
            if time.monotonic() > end:
                raise TimeoutError(f"it did not answer within {SECONDS:.0f} s")

    def export(self) -> bytes:
        stream = BytesIO()
        self._compiled.export_model(stream)
        return stream.getvalue()


def reason(error: Exception) -> str:
    """What an error of OpenVINO's says, without the places in its sources, on one line."""
    lines = [PLACE.sub("", line).strip() for line in str(error).splitlines()]
    sentences = [line for line in lines if line and not line.startswith("src/")]
    return " ".join(dict.fromkeys(sentences)) or type(error).__name__
