"""Makes networks: loaded or compiled, and in any case compared before they are believed."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeAlias

from edgerun.backends.base import CompileOptions
from edgerun.backends.openvino.blobs import Blobs, fingerprint, name_of
from edgerun.backends.openvino.compile_process import Compilation, job_of
from edgerun.backends.openvino.devices import Config
from edgerun.backends.openvino.interface import Interface, interface_of, model_of, results_of
from edgerun.backends.openvino.matrices import Stored, stored_bytes
from edgerun.backends.openvino.network import Network, Request, Tally
from edgerun.backends.openvino.session import FAILURES, Session, reason
from edgerun.backends.openvino.translate.registry import TRANSLATORS
from edgerun.backends.openvino.translation import Extent, Translation
from edgerun.errors import BackendError
from edgerun.graph.ir import Graph
from edgerun.state import AttentionState

Steps: TypeAlias = Generator[Compilation, None, Network]
Attempt: TypeAlias = "Generator[Compilation, None, tuple[Network | None, str]]"
COMPILING = "compiling for"  # what progress is told begins with it


class NetworkMaker:
    """Makes the networks of a segment."""

    def __init__(
        self,
        segment: Graph,
        session: Session,
        options: CompileOptions,
        difference: Callable[[Network], str],
        cache: Path,
    ) -> None:
        """Takes what is to be made, what says how a network errs, and where to keep networks."""
        self._segment, self._session, self._options = segment, session, options
        self._difference, self._cache = difference, cache
        self._translators = {op: each.translate for op, each in TRANSLATORS.items()}
        self._blobs = Blobs(cache) if options.digest else None
        self._pending: dict[Extent, tuple[Steps, Compilation]] = {}

    def make(self, extent: Extent, seconds: float | None) -> Network | None:
        """The network of an extent; None if it is not there within some seconds.

        Then, and after Ctrl-C, it goes on being made, and can be asked for again.

        Raises:
            BackendError: no configuration of the device computes what the stand-in does, or it does
                not answer.
        """
        end = None if seconds is None else time.monotonic() + seconds
        steps, compilation = self._pending.get(extent) or (self._steps(extent), None)
        while True:
            if compilation is not None:
                self._pending[extent] = steps, compilation  # also if Ctrl-C ends the wait
                left = None if end is None else max(0.0, end - time.monotonic())
                if not compilation.wait(left):
                    return None
                del self._pending[extent]
            try:
                compilation = next(steps)
            except StopIteration as stop:
                network: Network = stop.value
                return network

    def close(self) -> None:
        """Ends what is still being made."""
        pending, self._pending = self._pending, {}
        for steps, _ in pending.values():
            steps.close()

    def leave_blob(self, extent: Extent, config: Config, name: str) -> None:
        """Compiles a network for another process, unless it is there.

        Raises:
            BackendError: it would be another network than the one that is asked for, or it cannot
                be kept.
            RuntimeError: the device refuses it.
        """
        assert self._blobs is not None
        _, key = self._sketched(extent)
        if name_of((key, _as_json(config))) != name:
            raise BackendError("another process makes another network of the same bundle")
        with self._blobs.locked(name):
            if self._blobs.load(name) is None:
                self._blobs.save(name, self._compiled(extent, config).export())
            if self._blobs.load(name) is None:
                raise BackendError(
                    f"compiled networks cannot be kept in {self._cache}: make room there, or set "
                    "EDGERUN_CACHE to another folder that can be written"
                )

    def _steps(self, extent: Extent) -> Steps:
        """Makes a network in steps, each of which waits for a compiler."""
        began = time.perf_counter()
        interface, key = self._sketched(extent)
        faults: dict[str, str] = {}
        for config in self._configurations(key):
            network, fault = yield from self._with_config(config, interface, key)
            if network is not None:
                self._accept(config, key)
                tally = network.tally = Tally(extent, time.perf_counter() - began)
                self._session.tallies.append(tally)
                return network
            faults.setdefault(fault, " ".join(f"{key}={value}" for key, value in config.items()))
        reasons = "; ".join(f"{fault} (with {config})" for fault, config in faults.items())
        raise BackendError(f"{self._session.device.title} cannot run this model: {reasons}")

    def _sketched(self, extent: Extent) -> tuple[Interface, str]:
        """What goes in and out of a network, and what names it, whatever its options."""
        sketch = self._translated(extent, None)
        stored = self._session.device.stored
        self._session.check_memory(sum(stored_bytes(each, stored) for each in sketch.matrices))
        results = results_of(sketch)
        key = self._key(fingerprint(results)) if self._blobs else ""
        return interface_of(sketch, results), key

    def _configurations(self, key: str) -> list[Config]:
        """Options to try, those first with which this network was right when it was last made."""
        configurations = self._session.configurations()
        accepted = self._blobs.load(key) if self._blobs else None
        return sorted(configurations, key=lambda config: _as_json(config) != accepted)

    def _accept(self, config: Config, key: str) -> None:
        self._session.accept(config)
        if self._blobs and self._blobs.load(key) != _as_json(config):
            self._blobs.save(key, _as_json(config))

    def _with_config(self, config: Config, interface: Interface, key: str) -> Attempt:
        """The network with some options; None, and why, if it does not compute what it should."""
        if self._blobs is None:
            return self._checked(interface, lambda: self._compiled(interface.extent, config))
        name = name_of((key, _as_json(config)))
        if self._session.device.compiles_in_child and self._segment.source is not None:
            return (yield from self._compiled_by_child(self._blobs, name, config, interface))
        with self._blobs.locked(name):
            network = self._from_blob(self._blobs, name, config, interface)[0]
            if network is not None:
                return network, ""
            network, fault = self._checked(
                interface, lambda: self._compiled(interface.extent, config)
            )
            if network is not None:
                self._save(self._blobs, name, network)
            return network, fault

    def _compiled_by_child(
        self, blobs: Blobs, name: str, config: Config, interface: Interface
    ) -> Attempt:
        network, _ = self._from_blob(blobs, name, config, interface)
        if network is not None:
            return network, ""
        self._show_progress(interface.extent)
        try:
            compilation = Compilation(self._job(interface.extent, config, name))
        except OSError as error:
            return None, f"its compiler cannot be started: {error.strerror or error}"
        with contextlib.closing(compilation):
            yield compilation
            fault = compilation.fault()
        if fault:
            return None, fault
        return self._from_blob(blobs, name, config, interface)

    def _from_blob(
        self, blobs: Blobs, name: str, config: Config, interface: Interface
    ) -> tuple[Network | None, str]:
        """The network of a blob, which is removed if it is wrong."""
        blob = blobs.load(name)
        if blob is None:
            return None, "there is no compiled network"
        network, fault = self._checked(interface, lambda: self._session.load(blob, config))
        if network is None:
            blobs.remove(name)
        return network, fault

    def _job(self, extent: Extent, config: Config, name: str) -> bytes:
        states = [each for each in self._options.states if isinstance(each, AttentionState)]
        return job_of(
            self._segment,
            extent,
            states,
            config,
            digest=self._options.digest,
            device=self._session.device.name,
            threads=self._session.threads,
            name=name,
            cache=str(self._cache),
        )

    def _translated(self, extent: Extent, stored: Stored | None) -> Translation:
        return Translation(
            self._segment,
            extent,
            self._options.states,
            stored,
            self._translators,
            is_half=self._session.device.is_half,
        )

    def _show_progress(self, extent: Extent) -> None:
        self._options.progress(f"{COMPILING} {self._session.device.title}: {extent}")

    def _checked(
        self, interface: Interface, start: Callable[[], Request]
    ) -> tuple[Network | None, str]:
        try:
            network = Network(interface, start())
            fault = self._difference(network)
        except TimeoutError as error:  # other options would wait for it, too
            self._session.keep_networks()
            raise BackendError(
                f"{self._session.device.title} cannot run this model: {reason(error)}"
            ) from error
        except FAILURES as error:
            return None, reason(error)
        return (None, fault) if fault else (network, "")

    def _compiled(self, extent: Extent, config: Config) -> Request:
        self._show_progress(extent)
        translation = self._translated(extent, self._session.device.stored)
        return self._session.compile(model_of(translation), config)

    def _save(self, blobs: Blobs, name: str, network: Network) -> None:
        """Saves a network once its weights are known to be those of the digest in its name."""
        try:
            blob = network.export()
        except FAILURES:  # some compilers export nothing
            return
        self._options.verified()
        blobs.save(name, blob)

    def _key(self, sketch: str) -> str:
        """Names a network whatever its options."""
        stored = self._session.device.stored
        return name_of((self._options.digest, sketch, stored, *self._session.identity()))


def _as_json(config: Config) -> bytes:
    return json.dumps(dict(config), sort_keys=True).encode()
