"""A command of the overlay, how much memory it moves, and what an overlay can do.

Layouts are described in ``docs/fpga.md`` and made by ``packing.py``. A board only moves bytes, so
all that is needed here are sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.attention import BLOCK_TOKENS, MAX_TOKENS

TERNARY_TILE = regs.TABLES * regs.GROUP
RESULT_BYTES = regs.RESULT_BITS // 8
GLUE_LANES = 4  # elements of a row in a beat
GLUE_PASSES = 3  # over a row at most
GLUE_RESIDUAL = 3  # the gate that is a residual sum
MAX_COUNT = 0xFFFF
# Cycles to fill a tile's tables, and what a command takes besides its lookups; used for patience,
# not for plans, so a rough upper estimate will do.
MAX_FILL_CYCLES = 32
MAX_START_CYCLES = 512


@dataclass(frozen=True)
class Capabilities:
    """What the overlay says about itself in GEOMETRY and LIMITS.

    Attributes:
        ports: weight ports.
        columns: activation columns that share one weight stream.
        queue_depth: commands that may be submitted and not complete.
        max_row_beats: largest number of row beats in a command.
        row_scale: results can be scaled to float32 per row.
        ternary: ternary mode is there.
        multiples: multiples mode is there.
        addr_bits: bits of a device address.
        attention: queries of an attention command; 0: the overlay cannot attend.
        glue: norms, gates, residual sums and rounding are there.
    """

    ports: int
    columns: int
    queue_depth: int
    max_row_beats: int
    row_scale: bool
    ternary: bool
    multiples: bool
    addr_bits: int
    attention: int = 0
    glue: bool = False

    @property
    def rows_per_beat(self) -> int:
        """Matrix rows looked up in one cycle."""
        return self.ports * regs.PORT_ROWS

    @property
    def macs_per_cycle(self) -> int:
        """Multiplications of ternary mode in one cycle."""
        return self.rows_per_beat * TERNARY_TILE * self.columns


@dataclass(frozen=True)
class Command:
    """One matrix multiplication, attention or glue. Addresses are the device's, multiples of 16.

    Attributes:
        x: address of the activations, int8 [tiles][columns][16].
        y: address of the results, 32 bits [row_beats][columns][rows_per_beat].
        weights: address of each port's weights, uint8 [tiles][row_beats][16].
        row_beats: matrix rows over rows per beat, rounded up.
        tiles: activations over 15 (ternary) or 5 (multiples), rounded up.
        columns: activation columns.
        multiples: False for ternary mode.
        scales: address of float32 [row_beats * rows_per_beat], or None for int32 results.
        kv_heads: of attention, whose operands ``attention_layout.py`` describes: ``x`` are the
            queries, as many as ``columns``, ``weights`` the keys and values, ``row_beats`` the
            beats of a pair of blocks and ``tiles`` the pairs; 0 for a matrix.
        head_units: of attention: elements of a head over 16.
        glue: a row of a layer's values in place of a matrix, as ``glue_layout.py`` describes: ``x``
            are gain, constants and row, ``scales`` the row beside it, ``weights`` the norm's,
            ``row_beats`` beats of codes and ``tiles`` elements.
        gate: of glue: a ``glue.Gate``.
        norm: of glue: there is a norm.
        after: all but ``weights`` are read when the commands before are complete.
    """

    x: int
    y: int
    weights: tuple[int, ...]
    row_beats: int
    tiles: int
    columns: int = 1
    multiples: bool = False
    scales: int | None = None
    kv_heads: int = 0
    head_units: int = 0
    glue: bool = False
    gate: int = 0
    norm: bool = False
    after: bool = False

    @property
    def mode_word(self) -> int:
        """The value of CMD_MODE."""
        after = self.after << regs.CMD_MODE_AFTER.lsb
        if self.kv_heads:
            heads = self.kv_heads << regs.CMD_MODE_KV_HEADS.lsb
            units = self.head_units << regs.CMD_MODE_HEAD_UNITS.lsb
            return after | regs.CMD_MODE_ATTENTION.mask | heads | units
        if self.glue:
            gate, norm = self.gate << regs.CMD_MODE_GATE.lsb, self.norm << regs.CMD_MODE_NORM.lsb
            return after | regs.CMD_MODE_GLUE.mask | gate | norm
        scaled = self.scales is not None
        multiples = self.multiples << regs.CMD_MODE_MULTIPLES.lsb
        return after | multiples | scaled << regs.CMD_MODE_SCALE.lsb


@dataclass(frozen=True)
class Sizes:
    """Bytes that a command reads and writes; ``weights`` is for one port."""

    x: int
    y: int
    weights: int
    scales: int


def sizes(command: Command, rows_per_beat: int) -> Sizes:
    """Bytes of each operand of ``command`` on an engine with so many rows per beat."""
    if command.kv_heads:
        width = command.kv_heads * command.head_units
        return Sizes(
            x=command.columns * (command.kv_heads + 2 * width) * regs.BEAT_BYTES,
            y=command.columns * width * regs.BEAT_BYTES * RESULT_BYTES,
            weights=command.tiles * command.row_beats * regs.BEAT_BYTES,
            scales=0,
        )
    if command.glue:
        return _glue_sizes(command, rows_per_beat // regs.PORT_ROWS)
    rows = command.row_beats * rows_per_beat
    return Sizes(
        x=command.tiles * command.columns * regs.BEAT_BYTES,
        y=_whole_beats(rows * command.columns * RESULT_BYTES),
        weights=command.tiles * command.row_beats * regs.BEAT_BYTES,
        scales=0 if command.scales is None else _whole_beats(rows * RESULT_BYTES),
    )


def _glue_sizes(command: Command, ports: int) -> Sizes:
    groups = -(-command.tiles // GLUE_LANES)
    sums = groups if command.gate == GLUE_RESIDUAL else 0
    return Sizes(
        x=(2 + groups) * regs.BEAT_BYTES,
        y=(sums + command.row_beats + 1) * regs.BEAT_BYTES,
        weights=-(-groups // ports) * regs.BEAT_BYTES if command.norm else 0,
        scales=groups * regs.BEAT_BYTES if command.gate else 0,
    )


def _whole_beats(nbytes: int) -> int:
    return -(-nbytes // regs.BEAT_BYTES) * regs.BEAT_BYTES


def expected_cycles(command: Command, rows_per_beat: int) -> int:
    """Cycles that ``command`` takes, roughly, when memory keeps up."""
    if command.glue:
        return GLUE_PASSES * -(-command.tiles // GLUE_LANES) + MAX_START_CYCLES
    lookups = command.tiles * max(command.row_beats, MAX_FILL_CYCLES)
    drain = sizes(command, rows_per_beat).y // regs.BEAT_BYTES
    return lookups + drain + MAX_START_CYCLES


def check_command(command: Command, capabilities: Capabilities) -> None:
    """Checks that an overlay can run ``command``.

    Raises:
        ValueError: it cannot, with the reason.
    """
    _in_range("tiles", command.tiles, MAX_COUNT)
    if command.kv_heads:
        _check_attention(command, capabilities)
    elif command.glue:
        _check_glue(command, capabilities)
    else:
        _in_range("row_beats", command.row_beats, capabilities.max_row_beats)
        _in_range("columns", command.columns, capabilities.columns)
    if len(command.weights) != capabilities.ports:
        raise ValueError(
            f"a command has {len(command.weights)} weight addresses; "
            f"the overlay has {capabilities.ports} weight ports"
        )
    if not (capabilities.multiples if command.multiples else capabilities.ternary):
        mode = "multiples" if command.multiples else "ternary"
        raise ValueError(f"a command asks for {mode} mode, which this overlay was built without")
    if command.scales is not None and not capabilities.row_scale:
        raise ValueError("a command has row scales, which this overlay was built without")
    needed = sizes(command, capabilities.rows_per_beat)
    spans = [("x", command.x, needed.x), ("y", command.y, needed.y)]
    spans += [("weights", address, needed.weights) for address in command.weights]
    if command.scales is not None:
        spans.append(("scales", command.scales, needed.scales))
    for name, address, nbytes in spans:
        aligned = address % regs.BEAT_BYTES == 0
        if not (aligned and address >= 0 and address + nbytes <= 1 << capabilities.addr_bits):
            raise ValueError(
                f"the address of {name}, {address:#x}, must be a multiple of {regs.BEAT_BYTES} and "
                f"end its {nbytes} bytes within {capabilities.addr_bits} bits"
            )


def _check_attention(command: Command, capabilities: Capabilities) -> None:
    if not capabilities.attention:
        raise ValueError("a command asks for attention, which this overlay was built without")
    _in_range("columns", command.columns, capabilities.attention)
    heads, units = command.kv_heads, command.head_units
    fits = heads <= regs.MAX_KV_HEADS and 1 <= units <= regs.MAX_HEAD_UNITS
    if not fits or heads * units > regs.MAX_KV_UNITS:
        raise ValueError(f"attention with {heads} heads of {16 * units} elements is not supported")
    pair = regs.KV_SCALE_BEATS + 2 * regs.KV_TOKENS * units
    if command.row_beats != pair or command.scales is not None:
        raise ValueError(f"attention to pairs of {command.row_beats} beats, not of {pair}")
    steps = command.tiles - regs.KV_LEAD
    if steps < 1 or steps % heads:
        raise ValueError(f"attention to {command.tiles} pairs, which are no whole blocks")
    # The unit counts tokens in 16 bits: those behind would be seen in place of the first ones.
    if (tokens := steps // heads * BLOCK_TOKENS) > MAX_TOKENS:
        raise ValueError(f"attention to {tokens} tokens; the unit attends to {MAX_TOKENS} at most")


def _check_glue(command: Command, capabilities: Capabilities) -> None:
    if not capabilities.glue:
        raise ValueError("a command asks for glue, which this overlay was built without")
    if not 1 <= command.tiles <= regs.MAX_GLUE_LENGTH:
        raise ValueError(
            f"glue of a row of {command.tiles} elements; the unit takes 1 to {regs.MAX_GLUE_LENGTH}"
        )
    beats = -(-command.tiles // TERNARY_TILE)
    if command.row_beats != beats or command.columns != 1:
        raise ValueError(f"glue of {command.row_beats} beats of codes, not of {beats}")
    if not 0 <= command.gate <= GLUE_RESIDUAL:
        raise ValueError(f"glue with gate {command.gate}; there are 0 to {GLUE_RESIDUAL}")
    if (command.scales is not None) != bool(command.gate):
        raise ValueError("glue needs a second row with a gate or a sum, and takes none without")


def _in_range(name: str, value: int, limit: int) -> None:
    if not 1 <= value <= limit:
        raise ValueError(f"{name} is {value}; this overlay takes 1 to {limit}")
