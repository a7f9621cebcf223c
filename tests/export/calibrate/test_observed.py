"""What is summed of the inputs of projections, and of what their outputs are to differ by."""

import numpy as np
import pytest

from edgerun_export.calibrate.observed import Observation, Work, products
from edgerun_export.calibrate.sensitivity import _error, _sampled_error
from edgerun_export.calibrate.taps import observe, parts
from edgerun_export.calibrate.weights import LayerWeights
from edgerun_export.calibrate.workers import Workers
from edgerun_export.quantize import block_layout, quantise_rows
from edgerun_export.quantize.method import Needs
from edgerun_export.recipe import TensorRecipe
from edgerun_export.verify.numpy_model import Layer

TOKENS = 9


def streams(spec, count):
    rng = np.random.default_rng(0)
    shape = TOKENS, spec.hidden_size
    return [rng.standard_normal(shape).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("number", [0, 1], ids=["attention", "feed_forward"])
@pytest.mark.parametrize("needs", [Needs.SOURCE, Needs.RESIDUAL])
def test_outputs_are_to_bring_back_what_the_stream_lacks(number, needs, golden, source_weights):
    """The part's output by the source's stream less that by ours, with what both begin with."""
    source = source_weights(golden("llama"))
    spec, weights = source.spec, LayerWeights(source, 0)
    part = parts(spec, 0)[number]
    (group,) = part.stages[-1]
    (path,) = (each.path for each in group)
    ours, theirs = streams(spec, 2)
    with Workers(1) as workers:
        work = Work(0, part.run, weights, weights)
        observation = Observation(spec, work, {path: needs}, [group], {0: ours}, {0: theirs})
        change = observation.sums([0], workers)[path].means().change
    after, lacks = (part.run(Layer(spec, weights, 0), each) for each in (ours, theirs))
    lacks = lacks - after - (0 if needs is Needs.RESIDUAL else theirs - ours)
    inputs = observe(spec, weights, 0, ours, [group], part.run).inputs[path]
    expected = lacks.astype(np.float64).T @ inputs / TOKENS
    np.testing.assert_allclose(change, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("count", [1, 64, 100, 1000])
def test_some_rows_tell_the_error_of_all(count, golden, source_weights):
    source = source_weights(golden("llama"))
    spec, weights = source.spec, LayerWeights(source, 0)
    (group, *_) = parts(spec, 0)[0].stages[0]
    inputs = products(spec, weights, 0, streams(spec, 3), [group])[group[0].path]
    shape = count, group[0].in_features
    rows = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    kind = TensorRecipe("int4", 32, "mse")
    rounded = block_layout("int4").unpack(quantise_rows(rows, "int4", 32, "mse", inputs))
    whole = _error(rounded - rows, inputs)
    assert _sampled_error(rows, kind, inputs) == pytest.approx(whole, rel=0.2)
