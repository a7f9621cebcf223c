"""EDGERUN_VALIDATE: a correct back-end passes, a wrong node is named."""

import numpy as np
import pytest

from edgerun import env, trace
from edgerun.backends.base import CompileOptions, Shape
from edgerun.backends.observe import ObservedExecutable
from edgerun.backends.reference import ReferenceBackend
from edgerun.errors import BackendError
from edgerun.model.bundle import open_bundle
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore
from tests.support.bundles import bundle_of, runner

IDS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize("name", ["llama", "qwen3", "bitnet-packed"])
def test_the_cpu_backend_passes_node_by_node(name, monkeypatch, capsys):
    monkeypatch.setenv("EDGERUN_VALIDATE", "1")
    monkeypatch.setenv("EDGERUN_DEBUG", "3")  # both at once
    env.settings.cache_clear()
    trace._logger.cache_clear()
    try:
        with runner(bundle_of(name), "cpu") as checked:
            prefill, decode = checked.run(IDS), checked.run([7])
    finally:
        monkeypatch.undo()
        env.settings.cache_clear()
        trace._logger.cache_clear()
    assert "float32 [8, " in capsys.readouterr().err
    with runner(bundle_of(name), "cpu") as plain:
        np.testing.assert_array_equal(plain.run(IDS), prefill)
        np.testing.assert_array_equal(plain.run([7]), decode)


class Wrong(ReferenceBackend):
    """Breaks the output of one node."""

    name = "wrong"

    def compile(self, segment, shape, options):
        inner = super().compile(segment, shape, options)

        def run(batch, cache, values):
            outputs = dict(inner(batch, cache, values))
            culprit = next(node for node in segment.nodes if node.op == "gate")
            outputs[culprit.outputs[0]] = outputs[culprit.outputs[0]] * 1.5
            return outputs

        return run


def test_the_first_wrong_node_is_named():
    bundle = open_bundle(bundle_of("llama"))
    config = bundle.config
    spec = states_of(bundle.graph, config, "fp32")
    options = CompileOptions(spec)
    checked = ObservedExecutable(Wrong(), bundle.graph, Shape.of(16), options, checks=True)
    cache = SequenceStore(spec, 64)
    sequence = cache.open()
    cache.reserve(sequence, len(IDS))
    with pytest.raises(BackendError, match=r"'wrong' diverges first at node '.*layers\.0.*gate"):
        checked(Batch.of(IDS, 0, sequence), cache)
