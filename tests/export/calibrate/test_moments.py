"""Sums over tokens, and what lies between layers."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from edgerun.errors import StorageError
from edgerun_export.calibrate.moments import Moments, Tokens
from edgerun_export.calibrate.streams import Stream
from edgerun_export.quantize import quantise_rows
from edgerun_export.quantize.method import Needs


@pytest.mark.parametrize("width", [4, 600])  # one strip, and more
def test_moments_are_means_over_all_tokens(width):
    random = np.random.default_rng(0)
    x, drift = (random.standard_normal((30, width)).astype(np.float32) for _ in range(2))
    change = random.standard_normal((30, 3)).astype(np.float32)
    moments = Moments(Needs.RESIDUAL, width)
    moments.add([Tokens(x[:10], drift[:10], change[:10]), Tokens(x[10:25], drift[10:25])])
    moments.add([Tokens(x[25:])])
    means = moments.means()
    np.testing.assert_allclose(means.importance, np.square(x).mean(axis=0), rtol=1e-5)
    expected = x.T @ x / 30
    expected[np.diag_indices(width)] += means.hessian.added
    np.testing.assert_allclose(means.hessian.whole(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(means.drift, drift[:25].T @ x[:25] / 30, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(means.change, change[:10].T @ x[:10] / 30, rtol=1e-5, atol=1e-6)
    silent = Moments(Needs.HESSIAN, width).means()
    assert silent.hessian.error(np.ones((2, width))) == 0 and not silent.importance.any()


def test_one_matrix_is_all_that_its_inputs_take():
    """Sums, their means, the triangle, and what is rounded by it: of K = 8,192 half a gigabyte."""
    random, width = np.random.default_rng(0), 2048
    x = random.standard_normal((64, width)).astype(np.float32)
    rows = random.standard_normal((4, width)).astype(np.float32)
    tracemalloc.start()
    moments = Moments(Needs.RESIDUAL, width)
    moments.add([Tokens(x, change=x[:, :4])])
    quantise_rows(rows, "int4", 32, "residual", moments.means())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.6 * 8 * width**2  # some strips and panels of this width are a tenth each


def test_what_lies_between_layers_is_on_disk(tmp_path):
    random = np.random.default_rng(0)
    windows = [random.standard_normal((tokens, 8)).astype(np.float32) for tokens in (5, 3, 5)]
    with Stream(tmp_path) as stream:
        for number in (2, 0, 1, 2):
            stream[number] = windows[number]
        stream[0] = -windows[0]
        np.testing.assert_array_equal(stream[0], -windows[0])
        np.testing.assert_array_equal(stream[1], windows[1])
        np.testing.assert_array_equal(stream[2], windows[2])
        assert stream.windows() == [2, 0, 1]
    assert not list(tmp_path.iterdir())


def test_a_disk_that_takes_no_stream_is_said_in_a_sentence(tmp_path, monkeypatch):
    with pytest.raises(StorageError, match="activations of windows to '.*absent'"):
        Stream(tmp_path / "absent")
    if not Path("/dev/full").exists():
        pytest.skip("has no /dev/full")
    full = open("/dev/full", "r+b", buffering=0)  # noqa: SIM115 - the stream closes it
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **options: full)
    refusal = pytest.raises(StorageError, match="No space left on device; fewer windows")
    with Stream(tmp_path) as stream, refusal:
        stream[0] = np.zeros((2, 3), np.float32)
