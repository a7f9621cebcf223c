"""Geometry of the overlay: what is chosen when it is synthesised or verilated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from edgerun_hw.overlay.command import Capabilities
from edgerun_hw.overlay.register_map import BEAT_BYTES, GROUP, MAX_PORTS, PORT_ROWS, TABLES


@dataclass(frozen=True)
class Geometry:
    """Parameters of the hardware, under the names of its SystemVerilog parameters.

    Attributes:
        ports: weight ports of 128 bits.
        columns: activation columns that share one weight stream: 1 for decode, more for prefill.
        nb_max: largest number of row beats of a command: depth of an accumulator half.
        row_scale: results can be multiplied by a float32 scale per row.
        attention: queries of an attention command, 0 for an overlay without that unit, which needs
            four ports.
        glue: norms, gates, residual sums and rounding are there; they need ``row_scale`` and
            a power of two of ports.
        queue_depth: commands that may wait in the overlay.
        addr_bits: width of addresses on the memory ports.
        read_ahead: beats that each weight port may hold before they are used; from 4,096 on in
            UltraRAM, which not all parts have.

    Raises:
        ValueError: a value is outside what the hardware can be built for.
    """

    ports: int = 4
    columns: int = 1
    nb_max: int = 512
    row_scale: bool = False
    attention: int = 0
    glue: bool = False
    queue_depth: int = 8
    addr_bits: int = 40
    read_ahead: int = 512

    def __post_init__(self) -> None:
        limits = {
            "ports": (1, MAX_PORTS),
            "columns": (1, 16),
            "nb_max": (16, 1 << 15),
            "attention": (0, 4),
            "queue_depth": (2, 128),
            "addr_bits": (32, 64),
            "read_ahead": (128, 1 << 15),
        }
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} must be from {least} to {most}, not {value}")
        for name in ("nb_max", "queue_depth", "read_ahead"):
            value = getattr(self, name)
            if value & (value - 1):
                raise ValueError(f"{name} must be a power of two, not {value}")
        if self.attention and self.ports != MAX_PORTS:
            raise ValueError(f"attention needs {MAX_PORTS} ports, not {self.ports}")
        if self.glue and not self.row_scale:
            raise ValueError("glue needs results that are scaled")
        if self.glue and self.ports & (self.ports - 1):
            raise ValueError(f"glue needs a power of two of ports, not {self.ports}")

    @property
    def rows_per_beat(self) -> int:
        """Matrix rows that one beat of all weight ports covers."""
        return PORT_ROWS * self.ports

    @property
    def max_rows(self) -> int:
        """Matrix rows of the largest command."""
        return self.nb_max * self.rows_per_beat

    @property
    def macs_per_cycle(self) -> int:
        """Peak ternary multiply-accumulates per clock cycle: 75 a port and column."""
        return self.rows_per_beat * TABLES * GROUP * self.columns

    @property
    def weight_bytes_per_cycle(self) -> int:
        """Bytes of packed weights that the engine takes per clock cycle."""
        return BEAT_BYTES * self.ports

    def row_beats(self, rows: int) -> int:
        """Row beats of a matrix of ``rows`` rows."""
        return -(-rows // self.rows_per_beat)

    def parameters(self) -> dict[str, int]:
        """Values of the SystemVerilog parameters of ``tlmm_top``, by name."""
        return {
            "PORTS": self.ports,
            "COLUMNS": self.columns,
            "NB_MAX": self.nb_max,
            "ROW_SCALE": int(self.row_scale),
            "ATTENTION": self.attention,
            "GLUE": int(self.glue),
            "QUEUE_DEPTH": self.queue_depth,
            "ADDR_BITS": self.addr_bits,
            "READ_AHEAD": self.read_ahead,
        }


# Layers that are queued whole read weights while norms and gates are computed; a KV260's UltraRAMs
# hold what comes meanwhile, 256 KiB on four ports.
LAYER = Geometry(ports=4, row_scale=True, attention=2, glue=True, read_ahead=4096)
PRESETS: Mapping[str, Geometry] = MappingProxyType(
    {
        "tiny": Geometry(ports=1, columns=1, nb_max=64),
        "tiny-prefill": Geometry(ports=1, columns=3, nb_max=64, row_scale=True),
        "tiny-glue": Geometry(ports=1, columns=1, nb_max=64, row_scale=True, glue=True),
        "decode-75": Geometry(ports=1, columns=1),
        "decode-300": Geometry(ports=4, columns=1),
        "decode-300-scale": Geometry(ports=4, columns=1, row_scale=True),
        "attention-300": Geometry(ports=4, columns=1, attention=2),
        "layer-300": LAYER,
        "prefill-1500": Geometry(ports=4, columns=5),
        "attention-1500": Geometry(ports=4, columns=5, attention=2),
        "layer-1500": replace(LAYER, columns=5),
    }
)


def capabilities_of(geometry: Geometry) -> Capabilities:
    """What an overlay of this geometry says about itself."""
    return Capabilities(
        ports=geometry.ports,
        columns=geometry.columns,
        queue_depth=geometry.queue_depth,
        max_row_beats=geometry.nb_max,
        row_scale=geometry.row_scale,
        ternary=True,
        multiples=True,
        addr_bits=geometry.addr_bits,
        attention=geometry.attention,
        glue=geometry.glue,
    )
