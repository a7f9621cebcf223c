"""A segment on a device of OpenVINO's, and its stand-in when the device fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import NO_VALUES, CompileOptions, Executable, Shape, Values
from edgerun.backends.openvino.check import TOKENS, difference
from edgerun.backends.openvino.maker import NetworkMaker
from edgerun.backends.openvino.network import Network
from edgerun.backends.openvino.pieces import Cut, Pieces, run_pieces
from edgerun.backends.openvino.session import FAILURES, Session
from edgerun.backends.openvino.translation import Extent
from edgerun.env import settings
from edgerun.errors import BackendError
from edgerun.graph.ir import Graph
from edgerun.graph.shapes import value_shapes
from edgerun.ops.registry import OPS
from edgerun.state import Batch, SequenceStore

PATIENCE_S = 60.0  # for a compiler, before the stand-in computes meanwhile
Outputs: TypeAlias = dict[str, NDArray[np.float32]]


class OpenvinoExecutable(Executable):
    """Runs a segment on the device; if that fails, on the back-end that stands in for it."""

    def __init__(
        self, segment: Graph, shape: Shape, session: Session, options: CompileOptions
    ) -> None:
        """Compiles the network that is needed first.

        Raises:
            BackendError: the device refuses the segment, or computes something else.
        """
        self._segment, self._shape = segment, shape
        self._session, self._options = session, options
        self._pieces = Pieces(segment, shape)
        cache = settings().cache_dir
        self._maker = NetworkMaker(segment, session, options, self._difference, cache)
        shapes = value_shapes(segment)
        self._outputs = {name: shapes[name] for name in segment.outputs}
        self._computes_rows = any(not value.selected for value in self._outputs.values()) or any(
            OPS[node.op].state is not None for node in segment.nodes
        )
        self._networks: dict[Extent, Network] = {}
        self._begun: set[Extent] = set()
        self._companion: Executable | None = None
        try:
            self._network(self._pieces.first())
        except BaseException:  # Ctrl-C leaves a compiler
            self._release()
            raise
        session.on_failure(self._release)

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs the batch; see ``Executable``.

        Raises:
            BackendError: the device failed, and nothing may go on in its place.
        """
        if not self._session.failure:
            outputs = self._attempted(batch, cache, values)
            if outputs is not None:
                return outputs
        if self._session.failure and self._options.required:
            raise BackendError(
                f"{self._session.device.title} failed and is required, so nothing goes on in its "
                f"place: {self._session.failure}"
            )
        return self._stand_in()(batch, cache, values)

    def close(self) -> None:
        """Drops the networks, and what compiles others, and closes the stand-in."""
        self._release()
        companion, self._companion = self._companion, None
        if companion is not None:
            companion.close()

    def _release(self) -> None:
        self._maker.close()
        self._session.settle()
        self._networks.clear()

    def _attempted(self, batch: Batch, cache: SequenceStore, values: Values) -> Outputs | None:
        """The outputs, or None if the device failed, or has no network yet."""
        try:
            return self._run(batch, cache, values)
        except FAILURES as error:
            self._session.give_up(error, is_required=self._options.required)
            return None

    def _run(self, batch: Batch, cache: SequenceStore, values: Values) -> Outputs | None:
        sequences = [
            [cut for cut in cuts if cut.extent.logit_rows or self._computes_rows]
            for cuts in self._pieces.cut(batch, cache.context)
        ]
        extents = dict.fromkeys(cut.extent for cuts in sequences for cut in cuts)
        if not all([self._network(extent) for extent in extents]):
            return None
        outputs = self._room(batch)
        for cuts in sequences:
            if cuts:
                self._run_cuts(self._networks, cuts, batch, cache, values, outputs)
        return outputs

    def _run_cuts(
        self,
        networks: Mapping[Extent, Network],
        cuts: Sequence[Cut],
        batch: Batch,
        cache: SequenceStore,
        values: Values,
        outputs: Outputs,
    ) -> None:
        """Computes the pieces of a sequence."""
        pieces = [(networks[cut.extent], self._pieces.piece(batch, values, cut)) for cut in cuts]
        computed = run_pieces(pieces, cache, self._session.mirror)
        for cut, results in zip(cuts, computed, strict=True):
            for name, array in results.outputs.items():
                place = cut.logit_rows if self._outputs[name].selected else cut.rows
                outputs[name][place] = array[: place.stop - place.start]

    def _room(self, batch: Batch) -> Outputs:
        """Memory for the outputs of a batch."""
        return {
            name: np.zeros(
                (len(batch.logit_rows) if shape.selected else batch.rows, shape.width), np.float32
            )
            for name, shape in self._outputs.items()
        }

    def _network(self, extent: Extent) -> Network | None:
        """The network of an extent, made when it is first needed; None while that takes too long.

        Raises:
            BackendError: no configuration of the device computes what the stand-in does, or it does
                not answer.
        """
        if extent in self._networks:
            return self._networks[extent]
        is_first = extent not in self._begun
        patience = PATIENCE_S if is_first and self._options.is_asked else 0.0
        self._begun.add(extent)
        network = self._maker.make(extent, None if self._options.required else patience)
        if network is None:
            if self._options.is_asked:
                self._session.warn_slow(patience)
            return None
        self._networks[extent] = network
        return network

    def _difference(self, network: Network) -> str:
        """What a network computes otherwise than the stand-in."""

        def run(batch: Batch, cache: SequenceStore, values: Values) -> Values:
            outputs = self._room(batch)
            logit_rows = slice(0, len(batch.logit_rows))
            cut = Cut(network.extent, slice(0, batch.rows), logit_rows)
            self._run_cuts({cut.extent: network}, [cut], batch, cache, values, outputs)
            return {name: outputs[name] for name in network.outputs}

        extent, states = network.extent, self._options.states
        step = min(extent.rows, self._shape.rows, TOKENS // 2)
        logits = {0: "none", 1: "last"}.get(extent.logit_rows, "all")
        return difference(run, self._stand_in(), self._segment, states, step, logits)

    def _stand_in(self) -> Executable:
        """What runs the segment elsewhere.

        Raises:
            BackendError: nothing does.
        """
        if self._companion is None:
            if self._options.fallback is None:
                raise BackendError(
                    f"{self._session.device.title} has nothing to be compared with, and nothing "
                    "that goes on when it fails: no other back-end was given"
                )
            self._companion = self._options.fallback(self._segment, self._shape)
        return self._companion
