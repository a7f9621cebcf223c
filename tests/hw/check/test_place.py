"""What ``edgerun fpga check --full`` makes of placements: seeds, clocks, failures."""

from edgerun.errors import BackendError
from edgerun_hw.check import checks
from edgerun_hw.check.checks import Plan

ENGINE, GLUE, ATTENTION = "tlmm_engine", "tlmm_glue", "tlmm_attention"


def placements(monkeypatch, **clocks):
    """Makes place and route reach these clocks with the seeds 1, 2, 3.

    Args:
        clocks: by module; other modules are fast.

    Returns:
        (module, seed, router, queries of attention) of every call.
    """
    from edgerun_hw.synthesis import ecp5

    numbers = {"lut": 1, "ff": 1, "bram": 1, "registered_bram": 1, "dsp": 0, "bitstream_bytes": 9}
    tried = []

    def place(geometry, module, *, seed, router):
        tried.append((module, seed, router, geometry.attention))
        clock = clocks.get(module, (300.0,))[seed - 1]
        if clock is None:
            raise BackendError("nextpnr-ecp5 took more than 7200 s and was ended")
        return ecp5.Placed(clock, 200.0, 8, seed, bitstream="x", **numbers)

    monkeypatch.setattr(ecp5, "place_and_route", place)
    return tried


def test_clock_below_the_goal_with_every_seed_fails(monkeypatch):
    placements(monkeypatch, tlmm_engine=(190.0, 199.9, 180.0))
    engine, *units = checks.CHECKS["place and route"](Plan(full=True))
    assert engine.result == "failed"
    assert "199.9 MHz (goal 200)" in engine.figure and "3 seeds" in engine.figure
    assert {unit.result for unit in units} == {"passed"}


def test_seeds_are_tried_until_one_reaches_the_goal(monkeypatch):
    tried = placements(monkeypatch, tlmm_engine=(190.0, 200.0, 300.0))
    engine, *_ = checks.CHECKS["place and route"](Plan(full=True))
    assert engine.result == "passed"
    assert engine.values["seeds_mhz"] == {1: 190.0, 2: 200.0}
    seeds = [(module, seed) for module, seed, *_ in tried]
    assert seeds == [(ENGINE, 1), (ENGINE, 2), (GLUE, 1), (ATTENTION, 1)]
    assert tried[-1][2:] == ("router2", 1)  # as much of a unit as the part holds


def test_units_are_held_to_clocks_of_their_own(monkeypatch):
    slow = (59.9, 59.0, 58.0)
    placements(monkeypatch, tlmm_glue=(130.0,), tlmm_attention=slow)
    engine, glue, attention = checks.CHECKS["place and route"](Plan(full=True))
    assert (engine.result, glue.result, attention.result) == ("passed", "passed", "failed")
    assert "130.0 MHz (goal 200, held to 125)" in glue.figure


def test_a_unit_that_is_not_placed_does_not_hide_the_others(monkeypatch):
    placements(monkeypatch, tlmm_glue=(None,))
    outcomes = list(checks.CHECKS["place and route"](Plan(full=True)))
    assert [outcome.result for outcome in outcomes] == ["passed", "failed", "passed"]
    assert "was ended" in outcomes[1].figure
