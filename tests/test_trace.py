"""EDGERUN_DEBUG shows the plan, times, shapes and values, each level with those before it."""

import pytest

from edgerun import env, trace
from tests.support.bundles import bundle_of, runner

SIGNS = {
    1: "decode cpu: {'embedding': 1",
    2: "/model/layers.*/mlp/down_proj/MatMulNBits",
    3: "prefill cpu linear /lm_head/MatMulNBits: float32 [4, ",
    4: ", mean ",
}


@pytest.fixture
def debug(monkeypatch):
    def set_level(level):
        monkeypatch.setenv("EDGERUN_DEBUG", str(level))
        env.settings.cache_clear()
        trace._logger.cache_clear()

    yield set_level
    monkeypatch.undo()
    env.settings.cache_clear()
    trace._logger.cache_clear()


@pytest.mark.parametrize("level", [0, 1, 2, 3, 4])
def test_each_level_adds_its_own_lines(level, debug, capsys):
    folder = bundle_of("llama", weights="int4")
    debug(level)
    with runner(folder, "cpu") as model:
        model.run([1, 2, 3, 4])
        model.run([5])
    shown = capsys.readouterr().err
    # Watching replaces the bundled program, so times belong to its steps from level 3 on too.
    assert {least: sign in shown for least, sign in SIGNS.items()} == {
        least: least <= level for least in SIGNS
    }


def test_timed_steps_compute_the_same(debug):
    folder = bundle_of("qwen3", weights="int4")
    with runner(folder, "cpu") as plain:
        expected = plain.run([1, 2, 3, 4])
    debug(2)
    with runner(folder, "cpu") as timed:
        assert (timed.run([1, 2, 3, 4]) == expected).all()
