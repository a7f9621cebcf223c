"""The onnxruntime back-end: releases that cannot run everything, graphs that never end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import edgerun
from edgerun.backends import Shape, make_backend, onnxruntime
from edgerun.errors import BackendError, BundleError, UnsupportedError
from edgerun.model.bundle import open_bundle
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of
from tests.support.interrupts import ctrl_c_after


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


@pytest.mark.parametrize(("installed", "runs"), [("1.26.1", False), ("1.27.0", True)])
def test_bounds_are_refused_by_releases_that_mask_before(
    installed: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens that are not seen would have a score of minus the bound."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: installed)
    graph, backend = open_bundle(bundle_of("gemma2")).graph, make_backend("onnxruntime")
    onnxruntime._bounds.cache_clear()
    answers = [backend.supports(graph, node, Shape.of(1)) for node in graph.nodes]
    onnxruntime._bounds.cache_clear()
    refused = {node.op for node, answer in zip(graph.nodes, answers, strict=True) if not answer}
    assert refused == (set() if runs else {"attention"})
    assert runs or any("1.26.1 masks scores before it bounds them" in str(a) for a in answers)


def endless_loop() -> bytes:
    """A model whose Loop goes on as long as its condition holds, which is always."""
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    inside = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, []),
    ]
    outside = [
        helper.make_tensor_value_info("still", TensorProto.BOOL, []),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, []),
    ]
    steps = [
        helper.make_node("Identity", ["on"], ["still"]),
        helper.make_node("Add", ["x", "x"], ["y"]),
    ]
    body = helper.make_graph(steps, "body", inside, outside)
    loop = helper.make_node("Loop", ["", "flag", "start"], ["logits"], body=body)
    start = helper.make_tensor_value_info("start", TensorProto.FLOAT, [])
    result = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [])
    graph = helper.make_graph([loop], "endless", [flag, start], [result])
    opsets = [helper.make_opsetid("", 21)]
    return bytes(
        onnx.ModelProto.SerializeToString(
            helper.make_model(graph, opset_imports=opsets, ir_version=10)
        )
    )


def test_an_endless_loop_ends_with_ctrl_c() -> None:
    session = ort.InferenceSession(endless_loop(), providers=["CPUExecutionProvider"])
    feed = {"flag": np.array(True), "start": np.array(1, np.float32)}
    with pytest.raises(KeyboardInterrupt), ctrl_c_after(0.5):
        onnxruntime._run_session(session, ["logits"], feed)
    assert not [thread for thread in threading.enumerate() if thread.name == "edgerun-limited"]


def test_what_onnxruntime_says_of_a_failed_run_is_a_back_end_error() -> None:
    session = ort.InferenceSession(endless_loop(), providers=["CPUExecutionProvider"])
    with pytest.raises(BackendError, match="onnxruntime failed"):
        onnxruntime._run_session(session, ["logits"], {})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_kv_heads": 1}, r"has the shape .*, but its description says 1 heads of 16"),
        ({"head_dim": 2}, "its description says 2 heads of 2"),
        ({"num_layers": 1}, "has 4 past keys and values, but its description says 1 layers"),
        ({"num_layers": 2**24}, "but its description says 16777216 layers"),
    ],
)
def test_a_description_that_contradicts_the_file_is_refused(sizes, message, tmp_path) -> None:
    """Of graphs with ops of their own nothing else is compared."""
    bundle = AlteredBundle(bundle_of("llama"), tmp_path / "bundle")
    bundle.set("layers.0/self_attn/Attention", softmax_precision=11)
    bundle.manifest["model"].update(sizes)
    with pytest.raises(BundleError, match=message):
        edgerun.load(bundle.save(), backend="onnxruntime", threads=1)


FORK = """
import os, signal, sys, time
import edgerun
llm = edgerun.load(sys.argv[1], backend="onnxruntime", threads=2, context=64)
llm.generate([1, 5, 9], max_tokens=2)
time.sleep(0.2)  # until its threads sleep
child = os.fork()
if child == 0:
    signal.alarm(20)
print(llm.generate([*range(5, 45)], max_tokens=4, temperature=0).ids, flush=True)
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if sys.argv[2] == "close":
    llm.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("end", ["close", "exit"])
def test_a_forked_process_computes_and_ends(end: str) -> None:
    """It has none of the threads that the parent's session would wait for to be destroyed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, str(bundle_of("llama")), end],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    child, parent = done.stdout.splitlines()
    assert child == parent
