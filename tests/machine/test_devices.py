"""What calls of a measured device are estimated to take."""

from __future__ import annotations

import pytest

from edgerun.machine.devices import ATTENTION, Call, DeviceProfile, cut

DEVICE = DeviceProfile(
    calls={
        "float/int4": (Call(64, 6400, 11e-3), Call(256, 51200, 21e-3)),
        "int8_row/ternary": (Call(64, 6400, 2e-3), Call(256, 51200, 6e-3)),
        ATTENTION: (Call(64, 6400, 5e-3, 256), Call(64, 6400, 9e-3, 1024)),
    },
    call_s=1e-3,
    load_bytes_s=1e9,
)


@pytest.mark.parametrize(
    ("rows", "calls"),
    [
        (1, [64]),
        (64, [64]),
        (65, [64, 64]),
        (128, [64, 64]),
        (129, [256]),
        (256, [256]),
        (300, [256, 64]),
        (513, [256, 256, 64]),
        (600, [256, 256, 64, 64]),
    ],
)
def test_rows_are_cut_into_calls_of_the_sizes_that_there_are(rows: int, calls: list[int]) -> None:
    assert list(DEVICE.cut(rows)) == calls
    assert DEVICE.calls_seconds(rows) == pytest.approx(1e-3 * len(calls))
    assert list(cut(rows, ())) == [rows]


def test_a_padded_call_takes_as_long_as_a_full_one() -> None:
    # Of 64 rows 10 ms for 6400 multiply-adds, of 256 rows 20 ms for 51200.
    assert DEVICE.work_seconds("float/int4", 5, 100) == pytest.approx(10e-3)
    assert DEVICE.work_seconds("float/int4", 64, 100) == pytest.approx(10e-3)
    assert DEVICE.work_seconds("float/int4", 65, 100) == pytest.approx(10e-3 + 10e-3)
    assert DEVICE.work_seconds("float/int4", 129, 200) == pytest.approx(20e-3)
    assert DEVICE.work_seconds("float/int4", 300, 200) == pytest.approx(20e-3 + 20e-3)


def test_work_that_was_not_timed_counts_as_the_nearest_that_was() -> None:
    same_weights = DEVICE.work_seconds("int8_block/int4", 64, 100)
    assert same_weights == DEVICE.work_seconds("float/int4", 64, 100)
    slowest = DEVICE.work_seconds("int8_block/int8", 64, 100)
    assert slowest == DEVICE.work_seconds("float/int4", 64, 100)
    attends_only = DeviceProfile({ATTENTION: (Call(64, 6400, 5e-3),)})
    assert attends_only.work_seconds("float/int4", 64, 100) == pytest.approx(5e-3)


def test_attention_computes_all_tokens_that_a_call_has_room_for() -> None:
    assert [DEVICE.room(cached) for cached in (0, 256, 257, 1024, 5000)] == [
        256, 256, 1024, 1024, 16384,
    ]  # fmt: skip
    few, same, more = (DEVICE.attention_seconds(64, 1, cached) for cached in (1, 256, 257))
    assert few == same == pytest.approx(64 * (256 + 64) * 4e-3 / 6400)
    assert more == pytest.approx(64 * (1024 + 64) * 8e-3 / 6400)


def test_copies_cost_what_their_bytes_cost_or_nothing() -> None:
    assert DEVICE.load_seconds(5e6) == pytest.approx(5e-3)
    assert DEVICE.store_seconds(5e6) == 0


def test_a_call_of_next_to_nothing_still_has_a_rate() -> None:
    """A call may be measured to take less than an empty one, by chance."""
    quick = DeviceProfile({"float/int4": (Call(1, 100, 1e-3),)}, call_s=2e-3)
    assert quick.work_seconds("float/int4", 1, 100) == pytest.approx(1e-4)


def test_every_network_holds_the_weights() -> None:
    sizes = tuple(Call(rows, 1, 1.0) for rows in (1, 16, 64, 256, 1024))
    profile = DeviceProfile({"float/int4": sizes}, memory_bytes=200, weight_bytes=100)
    assert profile.held_bytes(50, 256) == 4 * 100
    assert profile.held_bytes(50, 10) == 2 * 100
    assert profile.held_bytes(50, 4000) == 5 * 100
    assert profile.held_bytes(50, 512) == 4 * 100  # one of 1,024 rows would be half empty
    assert DEVICE.held_bytes(50, 256) == 0  # not measured


def test_beyond_the_rooms_that_were_timed_they_grow_and_the_last_speed_counts() -> None:
    calls = (Call(64, 1000, 1.0, 256), Call(64, 1000, 0.5, 1024))
    device = DeviceProfile({ATTENTION: calls})
    assert device.room(1025) == 4096
    assert device.attention_seconds(64, 1.0, 1025) == pytest.approx(64 * (4096 + 64) / 2000)
    assert device.attention_seconds(64, 1.0, 200) == pytest.approx(64 * (256 + 64) / 1000)
    single = DeviceProfile({ATTENTION: calls[:1]})
    assert (single.room(100), single.room(300)) == (256, 300)  # how they grow is not known
    assert DeviceProfile({}).room(7) == 7


def test_calls_take_no_network_that_is_half_empty() -> None:
    profile = DeviceProfile({"float/int4": tuple(Call(size, 1, 1.0) for size in (64, 256, 1024))})
    assert list(profile.cut(512)) == [256, 256]
    assert list(profile.cut(100)) == [64, 64]
    assert list(profile.cut(320)) == [256, 64]
    assert list(profile.cut(600)) == [1024]
    assert list(profile.cut(1024)) == [1024]
