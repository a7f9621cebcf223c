"""Makes networks: loaded or compiled, and in any case compared before they are believed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from edgerun.backends.base import CompileOptions
from edgerun.backends.openvino.blobs import Blobs, fingerprint, name_of
from edgerun.backends.openvino.devices import Config
from edgerun.backends.openvino.network import (
    Interface,
    Network,
    Request,
    Tally,
    interface_of,
    model_of,
    results_of,
)
from edgerun.backends.openvino.session import FAILURES, Session, reason
from edgerun.backends.openvino.translate.registry import TRANSLATORS
from edgerun.backends.openvino.translation import Extent, Translation
from edgerun.env import settings
from edgerun.errors import BackendError
from edgerun.graph.ir import Graph

COMPILING = "compiling for"  # what progress is told begins with it


class NetworkMaker:
    """Makes the networks of a segment."""

    def __init__(
        self,
        segment: Graph,
        session: Session,
        options: CompileOptions,
        difference: Callable[[Network], str],
    ) -> None:
        """Takes what is to be made, and what says how a network errs."""
        self._segment, self._session, self._options = segment, session, options
        self._difference = difference
        self._translators = {op: each.translate for op, each in TRANSLATORS.items()}
        self._blobs = Blobs(settings().cache_dir) if options.digest else None

    def make(self, extent: Extent) -> Network:
        """The network of an extent.

        Raises:
            BackendError: no configuration of the device computes what the stand-in does.
        """
        began = time.perf_counter()
        sketch = Translation(self._segment, extent, self._options.states, None, self._translators)
        results = results_of(sketch)
        interface = interface_of(sketch, results)
        base = self._base(fingerprint(results)) if self._blobs else ""
        faults: dict[str, str] = {}
        for config in self._configurations(base):
            network, fault = self._with(config, interface, base)
            if network is not None:
                self._accept(config, base)
                tally = network.tally = Tally(extent, time.perf_counter() - began)
                self._session.tallies.append(tally)
                return network
            faults.setdefault(fault, " ".join(f"{key}={value}" for key, value in config.items()))
        said = "; ".join(f"{fault} (with {config})" for fault, config in faults.items())
        raise BackendError(f"{self._session.device.title} cannot run this model: {said}")

    def _configurations(self, base: str) -> list[Config]:
        """Options to try, those first with which this network was right when it was last made."""
        every = self._session.configurations()
        known = self._blobs.load(base) if self._blobs else None
        return sorted(every, key=lambda config: _text(config) != known)

    def _accept(self, config: Config, base: str) -> None:
        self._session.accept(config)
        if self._blobs and self._blobs.load(base) != _text(config):
            self._blobs.save(base, _text(config))

    def _with(self, config: Config, interface: Interface, base: str) -> tuple[Network | None, str]:
        """The network with some options; None, and why, if it does not compute what it should."""
        if self._blobs is None:
            return self._tried(interface, lambda: self._compiled(interface.extent, config))
        name = name_of((base, _text(config)))
        with self._blobs.alone(name):
            blob = self._blobs.load(name)
            if blob is not None:
                network, _ = self._tried(interface, lambda: self._session.load(blob, config))
                if network is not None:
                    return network, ""
                self._blobs.remove(name)
            network, fault = self._tried(
                interface, lambda: self._compiled(interface.extent, config)
            )
            if network is not None:
                self._keep(self._blobs, name, network)
            return network, fault

    def _tried(
        self, interface: Interface, start: Callable[[], Request]
    ) -> tuple[Network | None, str]:
        try:
            network = Network(interface, start())
            fault = self._difference(network)
        except FAILURES as error:
            return None, reason(error)
        return (None, fault) if fault else (network, "")

    def _compiled(self, extent: Extent, config: Config) -> Request:
        session, options = self._session, self._options
        options.progress(f"{COMPILING} {session.device.title}: {extent}")
        stored = session.device.stored
        translation = Translation(self._segment, extent, options.states, stored, self._translators)
        return session.compile(model_of(translation), config)

    def _keep(self, blobs: Blobs, name: str, network: Network) -> None:
        """Saves a network once its weights are known to be those of the digest in its name."""
        try:
            blob = network.export()
        except FAILURES:  # some compilers export nothing
            return
        self._options.verified()
        blobs.save(name, blob)

    def _base(self, drawing: str) -> str:
        """Names a network whatever its options."""
        stored = self._session.device.stored
        return name_of((self._options.digest, drawing, stored, *self._session.identity()))


def _text(config: Config) -> bytes:
    return json.dumps(dict(config), sort_keys=True).encode()
