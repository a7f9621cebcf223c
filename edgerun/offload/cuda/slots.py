"""What kernels of a GPU have to know of the processor's slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.experts.layout import PackedForm, SlotLayout
from edgerun.errors import UnsupportedError
from edgerun.kernels.layouts.zero_kinds import has_own_vectors
from edgerun.offload.cuda.forms import Form
from edgerun.offload.sharing.device import U8

WORD = 4  # bytes
ROW_BLOCK = 64  # codes of a row with one scale that a thread rounds; divides every such row


@dataclass(frozen=True)
class Matrix:
    """A matrix of an expert.

    Attributes:
        form: how it is stored.
        width: of its rows, without padding.
        outputs: its rows, without padding.
        block: codes of a row of activations that are rounded by one thread.
        blocks: of these.
        by_row: whether activations have one scale a row.
        words: int64, as ``forms.py`` numbers them.
    """

    form: Form
    width: int
    outputs: int
    block: int
    blocks: int
    by_row: bool
    words: NDArray[np.int64]

    @property
    def panels(self) -> int:
        """Thread blocks that multiply it."""
        return -(-self.outputs // self.form.height)


def matrices_of(layout: SlotLayout, activations: str) -> tuple[Matrix, Matrix, Matrix]:
    """Gate, up and down of the experts in slots of a layout.

    Raises:
        UnsupportedError: the kernels cannot read them.
    """
    forms = [each for each in layout.matrices if isinstance(each, PackedForm)]
    if len(forms) < len(layout.matrices) or len({each.row_scale for each in forms[:2]}) > 1:
        raise UnsupportedError(
            "the GPU has no kernels for experts whose gate and up projection are float32, or have "
            "one scale a row in one of them only: leave the device out"
        )
    empty: U8 = np.zeros(layout.nbytes, np.uint8)
    gate, up, down = (
        _matrix(form, projection.offsets, activations)
        for form, projection in zip(forms, layout.projections(empty), strict=True)
    )
    return gate, up, down


def _matrix(form: PackedForm, offsets: Mapping[str, int], activations: str) -> Matrix:
    stream = form.stream
    outputs, width = stream.shape
    padded_k = stream.tiles * (8 * WORD // stream.bits)
    block = ROW_BLOCK if form.row_scale else stream.block
    blocks = padded_k // block
    places = [offsets["codes"] // WORD, offsets["scales"] // WORD]
    bias = offsets["bias"] // WORD if "bias" in offsets else -1
    words = np.array([*places, bias, outputs, stream.tiles, blocks], np.int64)
    height, has_zeros = stream.lanes // WORD, has_own_vectors(stream.zeros)
    stored = Form(stream.bits, form.row_scale, height, has_zeros, stream.halves)
    return Matrix(stored, width, outputs, block, blocks, activations == "int8_row", words)
