"""The onnxruntime back-end with a release that cannot run everything."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import edgerun
from edgerun.backends import onnxruntime
from edgerun.errors import UnsupportedError
from tests.bundles import bundle_of


@pytest.fixture
def early_release(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(onnxruntime, "sys", SimpleNamespace(version_info=(3, 10)))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.23.2")
    onnxruntime._two_bits.cache_clear()
    yield
    onnxruntime._two_bits.cache_clear()


@pytest.mark.usefixtures("early_release")
def test_two_bits_are_refused_by_a_release_without_them() -> None:
    with pytest.raises(UnsupportedError, match=r"onnxruntime 1\.23\.2 has no 2-bit weights"):
        edgerun.load(bundle_of("bitnet-packed"), backend="onnxruntime")


@pytest.mark.usefixtures("early_release")
def test_other_weights_run_with_any_release() -> None:
    with edgerun.load(bundle_of("llama"), backend="onnxruntime", threads=1) as llm:
        assert llm.generate([1, 5, 9], max_tokens=2, temperature=0, ignore_eos=True).ids
