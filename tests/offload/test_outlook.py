"""What is expected of shared layers: an average over what may be on the device, and its bounds."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from edgerun.cli.main import main
from edgerun.offload.estimates import Estimate, Estimates
from edgerun.offload.schedule import Scheduler
from edgerun.offload.sharing.outlook import Call, outlook
from tests.support.bundles import bundle_of

AT_ONCE = Estimate(1e-12)


def costs(device_s: float, upload_s: float) -> Estimates:
    return Estimates(
        Estimate(9.0), Estimate(device_s), Estimate(upload_s), AT_ONCE, AT_ONCE, around=AT_ONCE
    )


def test_it_is_the_average_over_what_is_on_the_device() -> None:
    call, estimates, rng = Call(64, 8, 1, 1e-3), costs(3e-4, 2e-3), np.random.default_rng(0)
    scheduler, seconds = Scheduler(8), []
    for _ in range(4000):
        is_cached = rng.random(8) < 0.3
        cpu, device = np.full(8, 1e-3), np.full(8, 3e-4)
        schedule = scheduler(cpu, device, np.where(is_cached, 0, 2e-3), 19 - is_cached.sum())
        seconds.append((schedule.makespan_s, schedule.bound_s))
    expected = outlook(call, 0.3, 19, estimates)
    assert (expected.shared_s, expected.bound_s) == pytest.approx(np.mean(seconds, 0), rel=0.01)
    assert expected.alone_s == pytest.approx(8e-3)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_nothing_that_is_turned_down_is_faster(share: float) -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        call = Call(64, int(rng.integers(1, 20)), 1, float(rng.uniform(1e-4, 1e-2)))
        expected = outlook(call, share, 1000, costs(*rng.uniform(1e-4, 1e-2, 2).tolist()))
        others = expected.alone_s, expected.fixed_s, expected.moved_s
        assert expected.bound_s <= expected.shared_s * 1.000001 <= min(others) * 1.00001
        if share == 0:
            assert expected.fixed_s == expected.alone_s
        if share == 1:
            assert expected.fixed_s == expected.moved_s


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_what_takes_minutes_is_expected_to(share: float) -> None:
    """Schedules take no such times."""
    slow, call, there = 200.0, Call(64, 8, 1, 1e-3), 8 * share
    link = outlook(call, share, 1000, costs(3e-4, slow))
    assert link.moved_s == pytest.approx((8 - there) * slow, rel=0.01, abs=0.01)
    device = outlook(call, share, 1000, costs(slow, 1e-4))
    assert device.moved_s == pytest.approx(8 * slow, rel=0.01)
    for each in (link, device):
        assert each.bound_s <= each.shared_s * 1.000001 <= each.alone_s * 1.00001
        assert each.alone_s == pytest.approx(8e-3)
    processor = outlook(Call(64, 8, 1, slow), share, 1000, costs(1e-3, 1e-3))
    assert processor.alone_s == pytest.approx(8 * slow)
    assert processor.fixed_s == pytest.approx((8 - there) * slow, abs=0.01)
    assert processor.around_s <= processor.shared_s < 0.1


def test_what_a_call_needs() -> None:
    assert Call.of(64, 8, 1, 8.0) == Call(64, 8, 1, 1.0)
    many = Call.of(64, 8, 512, 64.0)
    assert (many.active, many.rows, many.cpu_s) == (64, 64, 1.0)
    assert Call.of(1, 1, 3, 2.0) == Call(1, 1, 3, 2.0)


@pytest.mark.usefixtures("announced")
def test_a_plan_tells_where_experts_are_what_a_layer_takes_and_what_was_turned_down(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = str(bundle_of("olmoe", weights="int4"))
    asked = ["plan", folder, "--device", "standin:memory=40K,link=1G"]
    assert main([*asked, "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["devices"]
    assert report["title"].startswith("layers shared with the stand-in: expected")
    decode = next(row for row in report["rows"] if row["phase"] == "decode")
    assert (decode["layers"], decode["experts"], decode["rows"]) == (2, 8, 1)
    assert 0 < decode["there"] < 8 and decode["there"] + decode["in memory"] == 8
    assert 0 < decode["bound"] <= decode["ms a layer"]
    assert {"CPU alone", "no uploads", "all uploaded"} <= decode.keys()
    assert {row["rows"] for row in report["rows"] if row["phase"] == "prefill"} == {1, 128}
    assert main([*asked, "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "layers shared with the stand-in: expected" in shown
    assert "link 1.1 GB/s and 20 us an upload, as asked for; a core, assumed" in shown
    assert re.search(r"room on the device for \d+ of 16 experts, 0\.00\d+ MB each", shown)
    assert main(asked) == 0
    assert "expected" not in capsys.readouterr().out


@pytest.mark.usefixtures("announced")
def test_a_device_without_room_for_an_expert_is_refused_when_it_is_planned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = str(bundle_of("olmoe", weights="int4"))
    assert main(["plan", folder, "--device", "standin:memory=1K", "--explain"]) != 0
    assert "give it memory=4K or more" in capsys.readouterr().err
