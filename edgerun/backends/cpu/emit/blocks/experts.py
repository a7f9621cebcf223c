"""Products of experts that have many rows, by unpacking their weights once.

An expert's rows begin anywhere among those of a batch, tiles do not. Where products read tiles
without an address for each row, rows are packed once more, each expert's from a whole tile on
(``kernels/run/dispatch.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgerun.backends.base import Phase
from edgerun.backends.cpu.binder import Binder, Rounded
from edgerun.backends.cpu.emit.blocks.gemm import (
    IN_BLOCKS,
    Packing,
    packed_rows,
    packing_arguments,
    packing_of,
    padded_k,
    strip_arguments,
)
from edgerun.backends.cpu.experts.program.dispatch import NOT_TILED, Tiled, Units, emit_dispatch
from edgerun.backends.cpu.experts.program.places import Places
from edgerun.backends.cpu.experts.program.waves import Wave
from edgerun.backends.cpu.families import AMX, BY_BLOCK
from edgerun.backends.cpu.row_paths import ROW, block_tokens, usual_path
from edgerun.machine.profile import family
from edgerun.machine.row_times import BlockPath

# From how many rows of an expert on, on average, unpacking pays: where they lie in the order of
# tiles, and where they do not (docs/benchmarks.md).
PACKED_ROWS, LOOSE_ROWS = 32, 128
# From how many rows on experts' rows go to AMX: those of a tile register, which costs the same
# however few of them there are.
AMX_ROWS = 16
NUMBER_BYTES = 4  # of a scale, or of a sum


def unpacks(binder: Binder, kernel: str, params: Mapping[str, Any], places: Places) -> bool:
    """Whether a program is for batches of so many rows that unpacking experts once pays.

    Args:
        binder: of the program.
        kernel: that multiplies rows in turns.
        params: its constants.
        places: of the batch's rows.
    """
    if kernel not in IN_BLOCKS or binder.shape.phase is not Phase.PREFILL:
        return False
    if binder.isa.prompts == AMX:  # its kernel leaves small parts alone by itself
        return binder.areas is not None  # the memory that it needs, which there may not be
    has_blocks = "block" in params
    kernels = family(BY_BLOCK if has_blocks else ROW, f"int{params['bits']}")
    path = binder.row_paths.get(kernels) or usual_path(binder.isa, kernels)
    least = max(path.least, PACKED_ROWS if has_blocks else LOOSE_ROWS)
    return bool(path.name) and places.count >= least * places.experts


def division(binder: Binder, *, in_blocks: bool) -> dict[str, int]:
    """Which rows of an expert are multiplied in blocks, for the kernel that does the others."""
    tokens = block_tokens(binder.isa, binder.isa.prompts if in_blocks else "")
    return {"tokens": tokens, "least": AMX_ROWS if binder.isa.prompts == AMX else 0}


@dataclass(frozen=True, slots=True)
class InBlocks:
    """What multiplies the rows that fill blocks.

    Attributes:
        kernel: its name.
        params: its constants.
        arguments: all of them.
        row_bytes: how far the rows of an argument are apart, of those that have rows.
        tiled: arguments whose rows lie by tiles.
        packed: rows in the order of tiles; None where they are read as they lie.
    """

    kernel: str
    params: dict[str, Any]
    arguments: dict[str, Any]
    row_bytes: Mapping[str, int]
    tiled: Tiled = NOT_TILED
    packed: Rounded | None = None

    def taken(self) -> list[Rounded]:
        """Buffers that nothing else reads."""
        return [] if self.packed is None else [self.packed]

    def emit(self, emit: Callable[..., None], reads: set[str], label: str) -> None:
        """Emits it by ``emit_dispatch`` of the layer; ``reads`` are keys of what it reads."""
        packed = set() if self.packed is None else self.packed.keys()
        emit(
            self.kernel,
            self.params,
            self.arguments,
            row_bytes=self.row_bytes,
            reads=reads | packed,
            label=label,
            tiled=self.tiled,
        )


def in_blocks(
    binder: Binder,
    single: tuple[str, dict[str, Any], dict[str, Any], Mapping[str, int]],
    places: Places,
    wave: Wave,
    label: str,
) -> InBlocks:
    """What multiplies rows in blocks; emits what packs them, if they are to be packed.

    Args:
        binder: of the program.
        single: the kernel that does the other rows: its name, constants, arguments and how far rows
            of these are apart.
        places: of the batch's rows.
        wave: of experts.
        label: for traces.
    """
    isa, (name, params, arguments, row_bytes) = binder.isa, single
    kernel = f"{isa.prompts}_{IN_BLOCKS[name]}"
    params = params | {"tokens": block_tokens(isa, isa.prompts)}
    arguments = {key: value for key, value in arguments.items() if key != "tokens"}
    if isa.prompts == AMX or "block" in params:
        params |= {"packed": 0}
    if isa.prompts == AMX:
        arguments |= strip_arguments(binder, arguments, params)
        return InBlocks(kernel, params, arguments, row_bytes)
    packing = packing_of(isa, BlockPath(isa.prompts), params)
    if packing is None:
        return InBlocks(kernel, params, arguments, row_bytes)
    packed, tiled = _packed(binder, packing, arguments, params, row_bytes, places, wave, label)
    arguments |= {"x": packed.codes, "x_stride": tiled["x"]}
    arguments |= {"x_scale": packed.scales, "x_sum": packed.sums}
    rest = {each: nbytes for each, nbytes in row_bytes.items() if each not in tiled}
    params |= {"packed": 1}
    return InBlocks(kernel, params, arguments, rest, Tiled(packing.tokens, tiled), packed)


def _packed(
    binder: Binder,
    packing: Packing,
    arguments: Mapping[str, Any],
    params: Mapping[str, Any],
    row_bytes: Mapping[str, int],
    places: Places,
    wave: Wave,
    label: str,
) -> tuple[Rounded, dict[str, int]]:
    """Rows of a wave in the order of tiles, and how far rows of a product's arguments are apart."""
    k, tokens = padded_k(arguments, params), packing.tokens
    rows = places.count + places.experts * tokens  # as ``first_of_tiles`` has them begin
    packed = packed_rows(places.pool, rows, k, int(params["block"]))
    operands, reads = packing_arguments(arguments, k, packed)
    numbers = NUMBER_BYTES * packed.blocks
    weightless = np.ones(places.experts, np.int64)  # nothing is waited for
    emit_dispatch(
        binder,
        packing.kernel,
        dict(packing.constants),
        operands,
        units=Units(places.parts, wave.first, weightless, None, {}),
        row_bytes={each: nbytes for each, nbytes in row_bytes.items() if each in operands},
        rows=places.count,
        chunks=(wave.parts, -(-places.rows // tokens)),  # an expert may get all rows
        reads=reads | {places.key},
        writes=packed.keys(),
        label=f"{label}/packing",
        tiled=Tiled(tokens, {"packed": k, "scale": numbers, "sum": numbers}),
    )
    return packed, {"x": k, "x_scale": numbers, "x_sum": numbers}
