"""Experts that are cut by columns: the device computes some of them, the processor the others.

An expert's two products are cut each by its outputs, never by what is added up, so that every
element is the sum that it would be without a cut. The second product needs all of what lies
between, so each side sends the other its columns of that: after the first products, which come
before anything else of the layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import CompileOptions, Executable, Shape
from edgerun.backends.cpu import CpuBackend
from edgerun.backends.cpu.experts.layout import PackedForm, SlotLayout
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Constant, Graph, Node, ValueShape
from edgerun.kernels.experts.division import UPLOAD
from edgerun.offload.schedule import NANOSECONDS, Schedule, makespan
from edgerun.offload.sharing.device import FIRST

MOST_PARTS = 8
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Cut:
    """Where an expert is cut: the device has what is before that.

    Attributes:
        panels: of each product's outputs, in panels as kernels take them.
        columns: the same in columns.
        all_panels: of each product.
    """

    panels: tuple[int, int]
    columns: tuple[int, int]
    all_panels: tuple[int, int]


def parts_of(layout: SlotLayout) -> int:
    """Parts that an expert can be cut into; 1 if it cannot."""
    if not all(isinstance(form, PackedForm) for form in layout.matrices):
        return 1
    most = min(_panels(layout, 0)[0], _panels(layout, 2)[0], MOST_PARTS)
    return 1 << (most.bit_length() - 1)


def cut_of(layout: SlotLayout, share: int, parts: int) -> Cut:
    """The cut that gives the device so many of the parts."""
    (inner, inner_height, width), (outer, outer_height, hidden) = (
        _panels(layout, matrix) for matrix in (0, 2)
    )
    panels = inner * share // parts, outer * share // parts
    columns = min(panels[0] * inner_height, width), min(panels[1] * outer_height, hidden)
    return Cut(panels, columns, (inner, outer))


def _panels(layout: SlotLayout, matrix: int) -> tuple[int, int, int]:
    """Panels of a matrix, rows of a panel, and rows of the matrix."""
    form = layout.matrices[matrix]
    assert isinstance(form, PackedForm)
    return form.stream.codes_shape[0], form.stream.lanes // 4, form.stream.shape[0]


def with_cut(
    costs: I64, whole: Schedule, finer: Schedule, parts: int, exchange_s: float
) -> tuple[Schedule, int]:
    """A schedule that cuts one expert of the device's, if that is done before ``whole`` is.

    Experts that have to be uploaded are not cut: their part between the products would come when
    the processor has nothing left to do but wait for it.

    Args:
        costs: nanoseconds of each expert on processor, device and link, int64 ``[experts, 3]``.
        whole: the schedule that cuts none.
        finer: one that cuts any, into ``parts``.
        parts: of an expert.
        exchange_s: what a cut costs besides.

    Returns:
        a schedule, and into how many parts it cuts experts: ``parts``, or 1 if it is ``whole``.
    """
    shares = finer.shares.copy()
    shares[(costs[:, UPLOAD] > 0) & (shares < parts)] = 0
    if np.count_nonzero((shares > 0) & (shares < parts)) != 1:
        return whole, 1
    order = finer.order[shares[finer.order] > 0]
    seconds = makespan(costs, shares, order.tolist(), parts) / (parts * NANOSECONDS) + exchange_s
    if seconds >= whole.makespan_s:
        return whole, 1
    return Schedule(shares, order, seconds, finer.bound_s, finer.weights), parts


def cuts_one(shares: Sequence[int], is_cached: Sequence[bool], parts: int) -> bool:
    """Whether shares of experts cut exactly one of those that the device has."""
    pairs = zip(shares, is_cached, strict=True)
    return sum([is_there and 0 < share < parts for share, is_there in pairs]) == 1


def cut_program(
    cpu: CpuBackend,
    node: Node,
    constants: Mapping[str, Constant],
    rows: int,
    options: CompileOptions,
    op: str,
    panels: tuple[int, int],
    widths: tuple[int, int] | None = None,
) -> Executable:
    """The processor's program for some panels of a product, of rows that go to one expert each.

    Args:
        cpu: compiles it.
        node: the layer.
        constants: its weights.
        rows: of a call, at most.
        options: see ``Backend.compile``.
        op: ``FIRST`` or ``SECOND``.
        panels: the first, and that before which it ends.
        widths: of a row and of its routes; None for what the weights say.
    """
    from edgerun.backends.cpu.emit.experts import CUT_PRODUCTS

    attributes: dict[str, Any] = {**node.attrs, "top_k": 1, "panels": panels}
    part = Node(op, f"{node.name}/{op}", node.inputs, node.outputs, attributes)
    if widths is None:
        matrix = constants[node.inputs[2 if op == FIRST else 4]]
        assert isinstance(matrix, ExpertStack)
        widths = int(matrix.shape[2]), len(matrix.matrices)
    shapes = dict(zip(node.inputs[:2], map(ValueShape, widths), strict=True))
    graph = Graph([part], list(shapes), [*node.outputs], dict(constants), shapes=shapes)
    return cpu.compile_with(graph, Shape.of(rows), options, CUT_PRODUCTS)
