"""Which kernels multiply how many rows of a linear layer (``machine/row_times.py`` has the rule).

Where ``edgerun doctor --calibrate`` timed the families of the instruction set in use, its times
say; elsewhere what was found best on other machines (docs/benchmarks.md) does. Results have the
same bits either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from edgerun.backends.base import FEW_ROWS, Phase, Shape
from edgerun.backends.cpu.families import AMX, BY_BLOCK, LOOKUP, REGROUPED, paths_of
from edgerun.backends.cpu.weights import DenseWeight, Prepared
from edgerun.kernels.host.processor import INTEL, vendor
from edgerun.kernels.lang.isa import Isa
from edgerun.kernels.layouts.trits import TritWeight
from edgerun.machine.profile import MachineProfile, family
from edgerun.machine.row_times import (
    ALL_IN_TURNS,
    BlockPath,
    Layers,
    of_threads,
    quickest_path,
    read_layers,
)

GEMM = "gemm"
LOOKUP_TOKENS = 16  # a block: one vector of int16 sums with AVX2
ANY_NUMBER = -1  # rows of a block, to AMX, which fills them up to tiles
ROW = "int8_row"
TRITS = family(ROW, "trits")
TERNARY = (family(ROW, "ternary"), TRITS)
MANY_ROWS = FEW_ROWS + 1  # from which on blocks are taken where nothing was measured
FEW_LOOKED_UP = 12  # from which on at the latest few rows are looked up, if they are at all
REGROUPED_BLOCK = 128
VNNI = "vnni"  # dot products of bytes, as instruction sets say it
WIDE = 64  # bytes of the widest vectors
EVEN_ROWS = 23  # that take as long in turns as unpacked, where unpacking delays products


def block_tokens(isa: Isa, path: str) -> int:
    """Rows of a block, as kernels take it; 0 for no path."""
    if path == LOOKUP:
        return LOOKUP_TOKENS
    if path == AMX:
        return ANY_NUMBER
    return isa.tile[1] if path else 0


def possible_paths(isa: Isa, kernels: str) -> tuple[str, ...]:
    """The paths that blocks of rows of a family may take."""
    if not kernels.startswith((f"{ROW}/", f"{BY_BLOCK}/")):
        return ()
    looks_up = kernels in TERNARY and LOOKUP in paths_of(isa)
    return (isa.prompts, *(LOOKUP,) * looks_up)


def usual_path(isa: Isa, kernels: str) -> BlockPath:
    """What is taken of a family where nothing was measured."""
    if not possible_paths(isa, kernels):
        return ALL_IN_TURNS
    if kernels in TERNARY and isa.looks_up and tables_pay(isa):
        return BlockPath(LOOKUP, isa.looks_up)
    if kernels == TRITS:  # more time to unpack than others take: once for all rows everywhere
        return BlockPath(isa.prompts, MANY_ROWS)
    least = isa.unpacks or (EVEN_ROWS + 1 if unpacking_delays(isa) else 0)
    return BlockPath(isa.prompts, least) if least else ALL_IN_TURNS


def tables_pay(isa: Isa) -> bool:
    """Whether ternary weights are looked up faster than multiplied.

    Of dot products of bytes an Intel core computes as many at a time as it shuffles vectors, and a
    product needs one where a table needs several.
    """
    return isa.dots != VNNI or vendor() != INTEL


def unpacking_delays(isa: Isa) -> bool:
    """Whether what unpacks codes takes the units that multiply.

    Of vectors of 64 bytes an Intel core computes two at a time, whatever it does with them; with
    vectors of 32 bytes it has a third unit, and AMD's cores have other ones for that.
    """
    return isa.vector_bytes == WIDE and vendor() == INTEL


def timed_layers(isa: Isa, profile: MachineProfile, threads: int) -> dict[str, Layers]:
    """Times of this machine with an instruction set, by family.

    Left out are families of which the profile has no times of this version, or not of all paths
    that they may take.

    Args:
        isa: of the kernels.
        profile: of this machine.
        threads: that will work; times with the nearest number of those that were timed count.
    """
    by_family = {}
    for kernels, content in profile.row_times.get(isa.name, {}).items():
        paths, layers = set(possible_paths(isa, kernels)), read_layers(content)
        if paths and layers and all(paths <= times.blocks.keys() for times in layers):
            by_family[kernels] = of_threads(layers, threads)
    return by_family


def measured_paths(isa: Isa, profile: MachineProfile, threads: int) -> Mapping[str, BlockPath]:
    """What follows from ``timed_layers``, by family."""
    return _MeasuredPaths(isa, timed_layers(isa, profile, threads))


class _MeasuredPaths(Mapping[str, BlockPath]):
    """Works out the path of a family when it is first asked for.

    All of them take 16 to 24 ms, a twentieth of a start; a model has one family or two.
    """

    def __init__(self, isa: Isa, times: Mapping[str, Layers]) -> None:
        self._isa, self._times, self._paths = isa, times, dict[str, BlockPath]()

    def __getitem__(self, kernels: str) -> BlockPath:
        if kernels not in self._paths:
            self._paths[kernels] = self._quickest(kernels)
        return self._paths[kernels]

    def __iter__(self) -> Iterator[str]:
        return iter(self._times)

    def __len__(self) -> int:
        return len(self._times)

    def _quickest(self, kernels: str) -> BlockPath:
        paths = possible_paths(self._isa, kernels)
        tokens = {path: block_tokens(self._isa, path) for path in paths}
        quickest = quickest_path(self._times[kernels], tokens)
        if kernels == TRITS and quickest.name:
            # Layers that are timed lie in caches. To expand trits that come from memory takes
            # longer, which few rows do not earn (8 to 16 rows of 2560 x 6912 on a Zen 5), except
            # where instructions multiply so slowly that a few are looked up anyway.
            usual = usual_path(self._isa, kernels)
            earliest = usual.least if quickest.name == usual.name else MANY_ROWS
            return replace(quickest, least=max(quickest.least, earliest))
        return quickest


def prepared_family(weight: Prepared, rounding: str) -> str:
    """The family of a weight as it lies in memory, by the kernel that rounds what it multiplies."""
    if isinstance(weight, DenseWeight) or not rounding.startswith("quantize"):
        return family("float", "float32")
    if isinstance(weight, TritWeight):
        return TRITS
    if rounding == "quantize_row":
        return family(ROW, "ternary" if weight.ternary else f"int{weight.bits}")
    is_regrouped = weight.bits == 8 and weight.block == REGROUPED_BLOCK
    return family(BY_BLOCK, REGROUPED if is_regrouped else f"int{weight.bits}")


def path_in(
    shape: Shape, isa: Isa, measured: Mapping[str, BlockPath], kernels: str, *, has_areas: bool
) -> BlockPath:
    """What a program for batches of a shape has for blocks of rows of a family.

    To look up keeps gate and up projection apart, in batches that are too small for it too. That
    costs them 0 to 5 % (Zen 5, AVX2), so it must pay for more of them than the last.

    Args:
        shape: of the batches.
        isa: of the kernels.
        measured: what ``measured_paths`` says.
        kernels: the family.
        has_areas: whether there is the memory that the matrix unit needs.
    """
    path = measured.get(kernels) or usual_path(isa, kernels)
    most = shape.rows
    if path.name == LOOKUP and shape.phase is Phase.FEW:
        most = min(most, FEW_LOOKED_UP)
    if not path.name or path.least > most or (path.name == AMX and not has_areas):
        return ALL_IN_TURNS
    return path
