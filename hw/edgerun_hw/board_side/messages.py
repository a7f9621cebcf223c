"""Messages between the driver's process and edgerun: a fixed layout, nothing is executed.

A message is one packet of a Unix socket that keeps packet boundaries: a kind, a number that a
reply repeats, and the fields of that kind, little endian, with no room for anything else. The
parser accepts exactly the bytes that ``encode`` makes; sizes and counts are bounded before
anything is allocated.

Requests in ``POSTED`` have no reply; what goes wrong with them is told in the next reply. All
others have exactly one, and each is answered within a bounded time: a ``WAIT`` for a command that
takes long is answered with ``PENDING`` and asked again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from edgerun_hw.overlay.command import Capabilities, Command
from edgerun_hw.overlay.port import Counters
from edgerun_hw.overlay.register_map import MAX_PORTS

PROTOCOL = 4
MAX_MESSAGE_BYTES = 1 << 16
MAX_COMMANDS = 256
MAX_TEXT_BYTES = 4096
MAX_BUFFER_BYTES = 1 << 34


class ProtocolError(ValueError):
    """The bytes are no message of this protocol."""


@dataclass(frozen=True)
class Message:
    """Base of all messages: a number of its kind, and its fields as ``struct`` packs them."""

    KIND: ClassVar[int]
    LAYOUT: ClassVar[str]

    def body(self) -> bytes:
        """The fields as bytes."""
        return struct.pack("<" + self.LAYOUT, *vars(self).values())


@dataclass(frozen=True)
class Hello(Message):
    """The first request."""

    KIND = 1
    LAYOUT = "I"
    protocol: int


@dataclass(frozen=True)
class Allocate(Message):
    """Allocate device memory; the packet carries a file to be used as the processor's side."""

    KIND = 2
    LAYOUT = "Q"
    nbytes: int


@dataclass(frozen=True)
class Free(Message):
    """Free a buffer. Posted."""

    KIND = 3
    LAYOUT = "I"
    buffer: int


@dataclass(frozen=True)
class Flush(Message):
    """Copy a buffer to the device; after the last time the memory file is let go. Posted."""

    KIND = 4
    LAYOUT = "I?"
    buffer: int
    last: bool = False


@dataclass(frozen=True)
class Invalidate(Message):
    """Copy a buffer from the device."""

    KIND = 5
    LAYOUT = "I"
    buffer: int


@dataclass(frozen=True)
class Wait(Message):
    """Wait for the command of that number since the last reset."""

    KIND = 7
    LAYOUT = "Q"
    number: int


@dataclass(frozen=True)
class Reset(Message):
    """Reset the overlay; drops all commands."""

    KIND = 8
    LAYOUT = ""


@dataclass(frozen=True)
class ReadCounters(Message):
    """Read the counters."""

    KIND = 9
    LAYOUT = ""


@dataclass(frozen=True)
class Bye(Message):
    """The last request. Posted."""

    KIND = 10
    LAYOUT = ""


@dataclass(frozen=True)
class Done(Message):
    """A request was carried out."""

    KIND = 64
    LAYOUT = ""


@dataclass(frozen=True)
class Allocated(Message):
    """There is a new buffer: the number by which requests name it, and its device address."""

    KIND = 69
    LAYOUT = "IQ"
    buffer: int
    address: int


@dataclass(frozen=True)
class Pending(Message):
    """The command is not complete; ask again."""

    KIND = 65
    LAYOUT = ""


@dataclass(frozen=True)
class Welcome(Message):
    """The first reply."""

    KIND = 66
    LAYOUT = "IIII???II?"
    capabilities: Capabilities

    def body(self) -> bytes:
        return struct.pack("<" + self.LAYOUT, *vars(self.capabilities).values())


@dataclass(frozen=True)
class Counted(Message):
    """The counters."""

    KIND = 67
    LAYOUT = "8I"
    counters: Counters

    def body(self) -> bytes:
        return struct.pack("<" + self.LAYOUT, *vars(self.counters).values())


_COMMAND = struct.Struct(f"<QQQ?????IIIIIII{MAX_PORTS}Q")


@dataclass(frozen=True)
class Submit(Message):
    """Queue commands, 1 to ``MAX_COMMANDS``. Posted."""

    KIND = 6
    LAYOUT = ""
    commands: tuple[Command, ...]

    def body(self) -> bytes:
        if not 1 <= len(self.commands) <= MAX_COMMANDS:
            raise ProtocolError(f"a message takes 1 to {MAX_COMMANDS} commands")
        return b"".join(_pack_command(command) for command in self.commands)


def _pack_command(command: Command) -> bytes:
    spare = MAX_PORTS - len(command.weights)
    return _COMMAND.pack(
        command.x,
        command.y,
        command.scales or 0,
        command.scales is not None,
        command.multiples,
        command.glue,
        command.norm,
        command.after,
        command.row_beats,
        command.tiles,
        command.columns,
        command.kv_heads,
        command.head_units,
        command.gate,
        len(command.weights),
        *command.weights,
        *[0] * spare,
    )


def _unpack_command(body: bytes) -> Command:
    x, y, scales, scaled, multiples, glue, norm, after, *counts = _COMMAND.unpack(body)
    beats, tiles, columns, kv_heads, head_units, gate, ports, *weights = counts
    if not 1 <= ports <= MAX_PORTS:
        raise ProtocolError(f"a command has {ports} weight addresses")
    return Command(
        x=x,
        y=y,
        weights=tuple(weights[:ports]),
        row_beats=beats,
        tiles=tiles,
        columns=columns,
        multiples=multiples,
        scales=scales if scaled else None,
        kv_heads=kv_heads,
        head_units=head_units,
        glue=glue,
        gate=gate,
        norm=norm,
        after=after,
    )


@dataclass(frozen=True)
class Failed(Message):
    """A request, or something posted before it, failed.

    Attributes:
        error: index into ``ERROR_KINDS``.
        tag: tag of the first command in error, or -1.
        flags: error flags, comma separated, then a line end and the sentence for the user.
    """

    KIND = 68
    LAYOUT = ""
    error: int
    tag: int
    flags: tuple[str, ...]
    text: str

    def body(self) -> bytes:
        text = f"{','.join(self.flags)}\n{self.text}".encode(errors="replace")[:MAX_TEXT_BYTES]
        return struct.pack("<Bq", self.error, self.tag) + text


ERROR_KINDS = ("overlay", "wrong", "command", "timeout", "memory", "worker")

_KINDS: tuple[type[Message], ...] = (
    *(Hello, Allocate, Free, Flush, Invalidate, Submit, Wait, Reset, ReadCounters, Bye),
    *(Done, Pending, Welcome, Counted, Failed, Allocated),
)
_BY_KIND = {kind.KIND: kind for kind in _KINDS}
POSTED = (Free, Flush, Submit, Bye)
_HEAD = struct.Struct("<BI")
NUMBERS = 1 << 32


def encode(message: Message, number: int = 0) -> bytes:
    """Returns the packet of ``message``."""
    return _HEAD.pack(message.KIND, number % NUMBERS) + message.body()


def decode(packet: bytes) -> tuple[int, Message]:
    """Returns the number of the packet and its message.

    Raises:
        ProtocolError: it is none.
    """
    if not _HEAD.size <= len(packet) <= MAX_MESSAGE_BYTES:
        raise ProtocolError(
            f"a message has {_HEAD.size} to {MAX_MESSAGE_BYTES} bytes, not {len(packet)}"
        )
    code, number = _HEAD.unpack_from(packet)
    kind, body = _BY_KIND.get(code), packet[_HEAD.size :]
    if kind is None:
        raise ProtocolError(f"there is no message of kind {code}")
    message = _DECODERS.get(kind, _decode_fixed)(kind, body)
    # Booleans have 255 encodings of true, and unused addresses any: only one may pass.
    if kind is not Failed and message.body() != body:
        raise ProtocolError(f"{kind.__name__} is not encoded as it should be")
    return number, message


def _decode_fixed(kind: type[Message], body: bytes) -> Message:
    layout = struct.Struct("<" + kind.LAYOUT)
    if len(body) != layout.size:
        raise ProtocolError(f"{kind.__name__} has {layout.size} bytes, not {len(body)}")
    return _MAKERS.get(kind, kind)(*layout.unpack(body))


def _decode_submit(_: type[Message], body: bytes) -> Message:
    count, excess = divmod(len(body), _COMMAND.size)
    if excess or not 1 <= count <= MAX_COMMANDS:
        raise ProtocolError(f"{len(body)} bytes are no list of commands")
    parts = [body[i : i + _COMMAND.size] for i in range(0, len(body), _COMMAND.size)]
    return Submit(tuple(_unpack_command(part) for part in parts))


def _decode_failed(_: type[Message], body: bytes) -> Message:
    head = struct.Struct("<Bq")
    if not head.size < len(body) <= head.size + MAX_TEXT_BYTES:
        raise ProtocolError(f"Failed has {len(body)} bytes")
    error, tag = head.unpack(body[: head.size])
    flags, line_end, text = body[head.size :].decode(errors="replace").partition("\n")
    if error >= len(ERROR_KINDS) or not line_end:
        raise ProtocolError("Failed has no known error")
    return Failed(error, tag, tuple(flags.split(",")) if flags else (), text)


_DECODERS: dict[type[Message], Callable[[type[Message], bytes], Message]] = {
    Submit: _decode_submit,
    Failed: _decode_failed,
}
_MAKERS: dict[type[Message], Callable[..., Message]] = {
    Welcome: lambda *values: Welcome(Capabilities(*values)),
    Counted: lambda *values: Counted(Counters(*values)),
}
