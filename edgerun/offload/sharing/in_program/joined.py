"""Compiles whole graphs of replies whose layers of experts are shared inside the program."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from edgerun.backends.base import CompileOptions, Executable, Shape
from edgerun.backends.cpu import CpuBackend
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Graph
from edgerun.kernels.run.commands import MOST_ROWS
from edgerun.offload.divider import Prices
from edgerun.offload.estimates import Estimates
from edgerun.offload.sharing.in_program.helper import DeviceHelper
from edgerun.offload.sharing.in_program.learning import Learner
from edgerun.offload.sharing.in_program.program import SharedProgram
from edgerun.offload.sharing.layer import Layer
from edgerun.offload.sharing.session import Session
from edgerun.offload.sharing.tally import Tally
from edgerun.offload.sharing.trials import Trials


def joined_program(
    graph: Graph,
    shape: Shape,
    options: CompileOptions,
    cpu: CpuBackend,
    layers: Collection[Layer],
    session: Session,
    estimates: Estimates,
    tally: Tally,
    trials: Trials | None,
    owned: Sequence[Executable],
) -> SharedProgram:
    """The processor's program of a graph, with commands for the device.

    Args:
        graph: all of it.
        shape: of few rows.
        options: see ``Backend.compile``.
        cpu: compiles it.
        layers: of the graph, that are shared.
        session: of the device.
        estimates: of layers that are shared so.
        tally: of what they did.
        trials: see ``SharedProgram``, as for the next.
        owned: programs that are closed with this.
    """
    layers = [each for each in layers if shape.rows * each.node.attrs["top_k"] <= MOST_ROWS]
    for layer in layers:
        session.show(layer.number, layer.experts)
    prices = Prices(estimates)
    numbers = {layer.node.name: layer.number for layer in layers}
    helper = DeviceHelper(
        session.control, numbers, prices, max((layer.experts for layer in layers), default=1)
    )
    program = cpu.compile_with(graph, shape, options, {"experts": Emitter(helper.emit)})
    learner = Learner(helper.layers, helper.totals, prices, estimates, tally, shape.rows)
    by_number = {layer.number: layer for layer in layers}
    return SharedProgram(
        program,
        by_number,
        session,
        estimates,
        learner,
        trials,
        owned=owned,
        is_required=options.required,
    )
