"""Ternary table-lookup matrix multiplication: registers and shared constants.

Made from registers.toml by `python -m edgerun_hw.registers --write`; do not edit.
"""

from typing import Final, NamedTuple


class Field(NamedTuple):
    """Some bits of the register at ``offset``."""

    offset: int
    lsb: int
    width: int

    @property
    def mask(self) -> int:
        """The field's bits, in place."""
        return ((1 << self.width) - 1) << self.lsb

    def of(self, word: int) -> int:
        """The field's value in the register's value ``word``."""
        return (word & self.mask) >> self.lsb


VLNV: Final = "edgerun:ip:tlmm:1.0"
WINDOW_BYTES: Final = 4096
ID_VALUE: Final = 0x544C4D4D
VERSION_MAJOR_VALUE: Final = 1
VERSION_VALUE: Final = 0x00010200

CODE_BITS: Final = 5
MAX_MAGNITUDE: Final = 13
TABLES: Final = 5
PORT_ROWS: Final = 5
GROUP: Final = 3
ENTRY_BITS: Final = 12
ACTIVATION_BITS: Final = 8
RESULT_BITS: Final = 32
BEAT_BYTES: Final = 16
MAX_PORTS: Final = 4
SPLIT_RADIX: Final = 27
KV_TOKENS: Final = 16
KV_LEAD: Final = 2
KV_SCALE_BEATS: Final = 4
MAX_KV_HEADS: Final = 32
MAX_HEAD_UNITS: Final = 16
MAX_KV_UNITS: Final = 128
MAX_GLUE_LENGTH: Final = 8192

ID: Final = 0x000
ID_RESET: Final = 0x544C4D4D

VERSION: Final = 0x004
VERSION_RESET: Final = 0x00010200
VERSION_PATCH: Final = Field(0x004, 0, 8)
VERSION_MINOR: Final = Field(0x004, 8, 8)
VERSION_MAJOR: Final = Field(0x004, 16, 16)

GEOMETRY: Final = 0x008
GEOMETRY_PORTS: Final = Field(0x008, 0, 4)
GEOMETRY_COLUMNS: Final = Field(0x008, 4, 8)
GEOMETRY_TABLES: Final = Field(0x008, 12, 4)
GEOMETRY_PORT_ROWS: Final = Field(0x008, 16, 4)
GEOMETRY_GROUP: Final = Field(0x008, 20, 4)
GEOMETRY_QUEUE_DEPTH: Final = Field(0x008, 24, 8)

LIMITS: Final = 0x00C
LIMITS_MAX_ROW_BEATS: Final = Field(0x00C, 0, 16)
LIMITS_ROW_SCALE: Final = Field(0x00C, 16, 1)
LIMITS_TERNARY: Final = Field(0x00C, 17, 1)
LIMITS_MULTIPLES: Final = Field(0x00C, 18, 1)
LIMITS_GLUE: Final = Field(0x00C, 19, 1)
LIMITS_QUERIES: Final = Field(0x00C, 20, 4)
LIMITS_ADDR_BITS: Final = Field(0x00C, 24, 8)

CONTROL: Final = 0x010
CONTROL_RESET: Final = 0x00000000
CONTROL_SOFT_RESET: Final = Field(0x010, 0, 1)
CONTROL_IRQ_ENABLE: Final = Field(0x010, 1, 1)

STATUS: Final = 0x014
STATUS_IDLE: Final = Field(0x014, 0, 1)
STATUS_RESETTING: Final = Field(0x014, 1, 1)
STATUS_QUEUE_FULL: Final = Field(0x014, 2, 1)
STATUS_QUEUE_LEVEL: Final = Field(0x014, 8, 8)

ERROR: Final = 0x018
ERROR_RESET: Final = 0x00000000
ERROR_BAD_LENGTH: Final = Field(0x018, 0, 1)
ERROR_UNDERRUN: Final = Field(0x018, 1, 1)
ERROR_OVERRUN: Final = Field(0x018, 2, 1)
ERROR_READ_RESPONSE: Final = Field(0x018, 3, 1)
ERROR_WRITE_RESPONSE: Final = Field(0x018, 4, 1)
ERROR_WATCHDOG: Final = Field(0x018, 5, 1)
ERROR_QUEUE_OVERFLOW: Final = Field(0x018, 6, 1)

ERROR_TAG: Final = 0x01C

WATCHDOG: Final = 0x020
WATCHDOG_RESET: Final = 0x00100000

SUBMITTED: Final = 0x024

COMPLETED: Final = 0x028

IRQ: Final = 0x02C
IRQ_RESET: Final = 0x00000000
IRQ_COMPLETED: Final = Field(0x02C, 0, 1)
IRQ_ERROR: Final = Field(0x02C, 1, 1)

CMD_MODE: Final = 0x040
CMD_MODE_MULTIPLES: Final = Field(0x040, 0, 1)
CMD_MODE_SCALE: Final = Field(0x040, 1, 1)
CMD_MODE_AFTER: Final = Field(0x040, 2, 1)
CMD_MODE_GLUE: Final = Field(0x040, 3, 1)
CMD_MODE_GATE: Final = Field(0x040, 4, 2)
CMD_MODE_NORM: Final = Field(0x040, 6, 1)
CMD_MODE_HEAD_UNITS: Final = Field(0x040, 20, 5)
CMD_MODE_KV_HEADS: Final = Field(0x040, 25, 6)
CMD_MODE_ATTENTION: Final = Field(0x040, 31, 1)

CMD_ROW_BEATS: Final = 0x044

CMD_TILES: Final = 0x048

CMD_COLUMNS: Final = 0x04C

CMD_TAG: Final = 0x050

CMD_X: Final = 0x054

CMD_S: Final = 0x05C

CMD_Y: Final = 0x064

CMD_W: Final = (0x070, 0x078, 0x080, 0x088)

CMD_PUSH: Final = 0x090

CYCLES: Final = 0x0A0

BUSY: Final = 0x0A4

LOOKUPS: Final = 0x0A8

STALL_WEIGHTS: Final = 0x0AC

STALL_TABLES: Final = 0x0B0

STALL_OUTPUT: Final = 0x0B4

READ_BEATS: Final = 0x0B8

WRITE_BEATS: Final = 0x0BC

OFFSETS: Final = {
    "ID": 0x000,
    "VERSION": 0x004,
    "GEOMETRY": 0x008,
    "LIMITS": 0x00C,
    "CONTROL": 0x010,
    "STATUS": 0x014,
    "ERROR": 0x018,
    "ERROR_TAG": 0x01C,
    "WATCHDOG": 0x020,
    "SUBMITTED": 0x024,
    "COMPLETED": 0x028,
    "IRQ": 0x02C,
    "CMD_MODE": 0x040,
    "CMD_ROW_BEATS": 0x044,
    "CMD_TILES": 0x048,
    "CMD_COLUMNS": 0x04C,
    "CMD_TAG": 0x050,
    "CMD_X_LO": 0x054,
    "CMD_X_HI": 0x058,
    "CMD_S_LO": 0x05C,
    "CMD_S_HI": 0x060,
    "CMD_Y_LO": 0x064,
    "CMD_Y_HI": 0x068,
    "CMD_W0_LO": 0x070,
    "CMD_W0_HI": 0x074,
    "CMD_W1_LO": 0x078,
    "CMD_W1_HI": 0x07C,
    "CMD_W2_LO": 0x080,
    "CMD_W2_HI": 0x084,
    "CMD_W3_LO": 0x088,
    "CMD_W3_HI": 0x08C,
    "CMD_PUSH": 0x090,
    "CYCLES": 0x0A0,
    "BUSY": 0x0A4,
    "LOOKUPS": 0x0A8,
    "STALL_WEIGHTS": 0x0AC,
    "STALL_TABLES": 0x0B0,
    "STALL_OUTPUT": 0x0B4,
    "READ_BEATS": 0x0B8,
    "WRITE_BEATS": 0x0BC,
}
