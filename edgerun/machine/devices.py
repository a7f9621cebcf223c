"""What was measured of a device beside the processor, and what a call of it therefore takes.

Devices compute calls of fixed sizes: so many rows, padded. What a model's nodes will take is
estimated from calls of small networks that were timed (``plan/calibration/devices.py``), by what
they multiply.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import msgspec

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
Speed: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]

ATTENTION = "attention"  # the family of calls whose work is that of attention to cached tokens
ELEMENTS = "elements"  # of those that do a little with every element and multiply no matrices
USUAL_ROWS = 512  # of the largest calls, where nobody asks for others
MEASURED = "measured"
LEAST_SHARE = 0.1  # of a call's time that is its work, whatever a call is said to cost besides


@dataclass(frozen=True, slots=True)
class Call:
    """One size of calls of one network.

    Attributes:
        rows: that a call computes, padded ones included.
        work: multiply-adds of a call; of ``ELEMENTS``, elements that it makes.
        seconds: a call takes; of ``ATTENTION``, without what is read out of pages.
        past: tokens before its rows for which it has room, all of which it computes; 0 where it
            computes those only that there are.
    """

    rows: Count
    work: Count
    seconds: Speed
    past: Annotated[int, msgspec.Meta(ge=0)] = 0


# What a file may say: every kind was timed, and some kind.
Timed: TypeAlias = Annotated[tuple[Call, ...], msgspec.Meta(min_length=1)]
Calls: TypeAlias = Annotated[Mapping[str, Timed], msgspec.Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What a device can do.

    Attributes:
        calls: what was timed, by kind of work: ``family`` of linear layers, ``ATTENTION``,
            ``ELEMENTS``.
        call_s: seconds of a call that has next to nothing to compute.
        launch_s: seconds that the first call after a pause takes longer.
        load_bytes_s: bytes of keys and values a second out of pages, for the device to read; None
            where it reads the pages themselves.
        store_bytes_s: bytes of keys and values a second from the device into pages; or None.
        compile_s: seconds until a network of the ``memory_bytes`` could be used.
        memory_bytes: that this network took.
        weight_bytes: of the network's weights as the bundle has them.
        mirrors: the device keeps what it read of keys and values, so they are read once.
        version: of what drives it.
        measured: date, ``YYYY-MM-DD``, of the measurement or the sources.
        source: ``MEASURED``, or where the figures come from.
        sources: where single figures come from, or ``"assumed"``, by name.
    """

    calls: Calls
    call_s: Seconds = 0.0
    launch_s: Seconds = 0.0
    load_bytes_s: Speed | None = None
    store_bytes_s: Speed | None = None
    compile_s: Seconds = 0.0
    memory_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    weight_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    mirrors: bool = False
    version: str = ""
    measured: str = ""
    source: str = MEASURED
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The numbers of rows that calls have, ascending."""
        return tuple(sorted({call.rows for calls in self.calls.values() for call in calls}))

    def held_bytes(self, weight_bytes: int, call_rows: int) -> int:
        """About what the networks for calls of up to so many rows take, each with all weights."""
        ratio = self.memory_bytes / self.weight_bytes if self.weight_bytes else 0.0
        return int(ratio * weight_bytes * len(worthwhile(self.chunks, call_rows)))

    def cut(self, rows: int) -> Iterator[int]:
        """Calls for so many rows, as ``cut`` divides them.

        They are of the sizes that are worthwhile for usual calls, or for longer ones if these are.
        """
        yield from cut(rows, worthwhile(self.chunks, max(rows, USUAL_ROWS)))

    def work_seconds(self, kind: str, rows: int, row_work: float) -> float:
        """Seconds for a node, without what calls cost besides.

        Args:
            kind: of its work; one that was not timed counts as the nearest that was.
            rows: of the batch, which is cut into calls.
            row_work: multiply-adds, or elements, for each row.
        """
        calls = self._nearest_kind(kind)
        return sum(size * row_work / self._rate(calls, size) for size in self.cut(rows))

    def attention_seconds(self, rows: int, token_work: float, cached: int) -> float:
        """Seconds to attend from so many rows to so many cached tokens, in calls of their own.

        Args:
            rows: of the batch.
            token_work: multiply-adds for each row and token it attends to.
            cached: tokens.
        """
        calls = self._nearest_kind(ATTENTION)
        past = self.room(cached)
        nearest = min((call.past for call in calls), key=lambda room: abs(room - past))
        same = tuple(call for call in calls if call.past == nearest)
        return sum(
            size * token_work * (past + size) / self._rate(same, size) for size in self.cut(rows)
        )

    def room(self, cached: int) -> int:
        """Tokens that a call computes where so many are cached.

        Beyond what was timed rooms go on growing as they did.
        """
        rooms = sorted({call.past for call in self.calls.get(ATTENTION, ())} - {0})
        if len(rooms) < 2:
            return next((room for room in rooms if room >= cached), cached)
        while rooms[-1] < cached:
            rooms.append(rooms[-1] * rooms[-1] // rooms[-2])
        return next(room for room in rooms if room >= cached)

    def calls_seconds(self, rows: int) -> float:
        """Seconds that the calls for so many rows cost besides their work."""
        return self.call_s * sum(1 for _ in self.cut(rows))

    def load_seconds(self, nbytes: float) -> float:
        """Seconds to read keys and values, or other values, of so many bytes out of host memory."""
        return nbytes / self.load_bytes_s if self.load_bytes_s else 0.0

    def store_seconds(self, nbytes: float) -> float:
        """Seconds to write so many bytes back."""
        return nbytes / self.store_bytes_s if self.store_bytes_s else 0.0

    def _rate(self, calls: tuple[Call, ...], rows: int) -> float:
        """Work a second in calls of so many rows, or of the nearest number that was timed."""
        call = min(calls, key=lambda each: abs(math.log(each.rows / rows)))
        return call.work / max(call.seconds - self.call_s, LEAST_SHARE * call.seconds)

    def _nearest_kind(self, kind: str) -> tuple[Call, ...]:
        """Calls of a kind: else of the same weights with other activations, else the slowest.

        The slowest of linear layers, where any were timed.
        """
        if kind in self.calls:
            return self.calls[kind]
        weights = kind.partition("/")[2]
        linear = {name: calls for name, calls in self.calls.items() if "/" in name}
        same = [calls for name, calls in linear.items() if name.partition("/")[2] == weights]
        others = same or [*linear.values()] or [*self.calls.values()]
        return min(others, key=lambda calls: self._rate(calls, calls[-1].rows))


def worthwhile(sizes: Sequence[int], rows: int) -> tuple[int, ...]:
    """The ascending sizes that calls of at most so many rows are computed in.

    A network that is half empty at best takes longer than several smaller ones, and holds all
    weights once more.

    >>> worthwhile((64, 256, 1024), 512), worthwhile((64, 256, 1024), 20)
    ((64, 256), (64,))
    """
    return tuple(size for size in sizes if size < 2 * rows) or tuple(sizes[:1])


def cut(rows: int, chunks: tuple[int, ...]) -> Iterator[int]:
    """Rows of the calls that compute so many rows; ``rows`` itself where any number may be.

    Each is the smallest that takes what is left, of those that are worthwhile for it, else the
    largest of these.

    >>> list(cut(600, (64, 256))), list(cut(100, (64, 256)))
    ([256, 256, 64, 64], [64, 64])
    """
    if not chunks:
        yield rows
        return
    while rows > 0:
        sizes = worthwhile(chunks, rows)
        size = next((each for each in sizes if each >= rows), sizes[-1])
        yield size
        rows -= size


def interpolated(by_number: Mapping[int, float], number: int) -> float:
    """The value at a number, between the nearest ones straight in logarithms of both.

    Beyond the ends it is that of the end.

    >>> interpolated({16: 100.0, 64: 400.0}, 32)
    200.0
    """
    below = max((each for each in by_number if each <= number), default=min(by_number))
    above = min((each for each in by_number if each >= number), default=max(by_number))
    if below == above:
        return by_number[below]
    share = math.log(number / below) / math.log(above / below)
    return math.exp((1 - share) * math.log(by_number[below]) + share * math.log(by_number[above]))


def title_of(key: str) -> str:
    """The device that a key of a profile names.

    >>> title_of("openvino:CPU, OpenVINO 2026.4.1")
    'openvino:CPU'
    """
    return key.partition(",")[0]


def device_key(title: str, version: str) -> str:
    """Names a device in a profile; with another driver it is another device.

    >>> device_key("openvino:CPU", "OpenVINO 2026.4.1")
    'openvino:CPU, OpenVINO 2026.4.1'
    """
    return f"{title}, {version}"
