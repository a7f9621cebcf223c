"""Messages between edgerun and the driver's process: what is encoded, and what is refused."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun_hw.board_side import messages as msg
from edgerun_hw.overlay.command import Capabilities, Command
from edgerun_hw.overlay.port import Counters

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
COMMANDS = st.builds(
    Command,
    x=U64,
    y=U64,
    weights=st.lists(U64, min_size=1, max_size=4).map(tuple),
    row_beats=U32,
    tiles=U32,
    columns=U32,
    multiples=st.booleans(),
    glue=st.booleans(),
    gate=U32,
    norm=st.booleans(),
    after=st.booleans(),
    scales=st.none() | U64,
)
FLAGS = st.lists(st.sampled_from(["underrun", "watchdog"]), max_size=2).map(tuple)
MESSAGES = st.one_of(
    st.builds(msg.Hello, U32),
    st.builds(msg.Allocate, U64),
    st.builds(msg.Free, U32),
    st.builds(msg.Flush, U32, st.booleans()),
    st.builds(msg.Invalidate, U32),
    st.builds(msg.Submit, st.lists(COMMANDS, min_size=1, max_size=5).map(tuple)),
    st.builds(msg.Wait, U64),
    st.sampled_from([msg.Reset(), msg.ReadCounters(), msg.Bye(), msg.Done(), msg.Pending()]),
    st.builds(msg.Allocated, U32, U64),
    st.builds(
        msg.Welcome,
        st.builds(Capabilities, U32, U32, U32, U32, *[st.booleans()] * 3, U32),
    ),
    st.builds(msg.Counted, st.builds(Counters, *[U32] * 8)),
    st.builds(
        msg.Failed,
        st.integers(0, len(msg.ERROR_KINDS) - 1),
        st.integers(-1, 2**32 - 1),
        FLAGS,
        st.text(max_size=40).filter(lambda text: "\ud800" not in text),
    ),
)


@given(MESSAGES, U32)
def test_decoding_is_the_inverse_of_encoding(message, number):
    assert msg.decode(msg.encode(message, number)) == (number, message)


@given(MESSAGES, st.binary(min_size=1, max_size=9))
def test_anything_too_long_or_too_short_is_refused(message, extra):
    packet = msg.encode(message)
    if not isinstance(message, (msg.Failed, msg.Submit)):
        with pytest.raises(msg.ProtocolError):
            msg.decode(packet + extra)
        with pytest.raises(msg.ProtocolError):
            msg.decode(packet[:-1])


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_give_a_message_or_a_protocol_error(packet):
    _decode_or_refuse(packet)


def test_altered_messages_give_a_message_or_a_protocol_error():
    rng = random.Random(1)
    command = Command(x=1, y=2, weights=(3, 4), row_beats=5, tiles=6, scales=7)
    samples = [
        msg.Submit((command,) * 3),
        msg.Welcome(Capabilities(1, 1, 8, 64, False, True, True, 40)),
        msg.Counted(Counters(*range(8))),
        msg.Failed(2, 7, ("watchdog",), "no progress"),
        msg.Allocate(4096),
    ]
    refused = 0
    for _ in range(20_000):
        packet = bytearray(msg.encode(rng.choice(samples), rng.getrandbits(32)))
        for _ in range(rng.randint(1, 4)):
            packet[rng.randrange(len(packet))] = rng.getrandbits(8)
        packet = packet[: rng.randint(0, len(packet))] if rng.random() < 0.3 else packet
        refused += _decode_or_refuse(bytes(packet))
    assert refused > 5000


def _decode_or_refuse(packet: bytes) -> bool:
    """Whether it was refused; what was not must be encoded as it came."""
    try:
        number, message = msg.decode(packet)
    except msg.ProtocolError:
        return True
    if not isinstance(message, msg.Failed):  # its text may have held bytes that are no UTF-8
        assert msg.encode(message, number) == packet
    return False


@pytest.mark.parametrize(
    ("packet", "message"),
    [
        (b"", "5 to 65536 bytes, not 0"),
        (b"\x40" + bytes(70_000), "not 70001"),
        (b"\xff" + bytes(4), "kind 255"),
        (b"\x06" + bytes(4), "no list of commands"),
        (b"\x06" + bytes(5), "no list of commands"),
        (msg.encode(msg.Failed(0, 0, (), ""))[:-1], "Failed has 9 bytes"),
        (b"\x44" + bytes(4) + b"\xff" + bytes(8) + b"\n", "no known error"),
    ],
)
def test_nonsense_is_named(packet, message):
    with pytest.raises(msg.ProtocolError, match=message):
        msg.decode(packet)


def test_long_texts_are_cut():
    packet = msg.encode(msg.Failed(0, -1, (), "ä" * 10_000))
    assert len(packet) < 5000
    _, message = msg.decode(packet)
    assert message.text.startswith("äää")


def test_too_many_commands_do_not_fit_a_message():
    command = Command(x=0, y=0, weights=(0,), row_beats=1, tiles=1)
    assert len(msg.encode(msg.Submit((command,) * msg.MAX_COMMANDS))) <= msg.MAX_MESSAGE_BYTES
    for count in (0, msg.MAX_COMMANDS + 1):
        with pytest.raises(msg.ProtocolError, match="commands"):
            msg.encode(msg.Submit((command,) * count))
