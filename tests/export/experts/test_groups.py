"""The form of a choice in groups, run by other runtimes: who is chosen, ties among them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgerun.ops.registry import OPS
from edgerun_export.architectures import Experts
from edgerun_export.architectures.decoder.layer import ExpertGroups
from edgerun_export.graph.experts import ranks_in_groups
from edgerun_export.graph.onnx_graph import OnnxGraph

F32 = NDArray[np.float32]
EXPERTS, TOP_K, ROWS = 24, 5, 400


def model_of(groups: ExpertGroups, axes: int) -> onnx.ModelProto:
    """A graph that makes the numbers of the chosen of what they are chosen by."""
    graph, experts = OnnxGraph(), Experts(EXPERTS, TOP_K, 8, normalise=False, groups=groups)
    ranks = ranks_in_groups(graph, "ranks", experts, axes, "/router")
    graph.node(
        "TopK",
        [ranks, graph.integers(TOP_K)],
        "/router/TopK",
        outputs=["scores", "ids"],
        axis=-1,
        largest=1,
        sorted=1,
    )
    before: list[int | str] = ["batch", "sequence"][-axes:]
    return graph.model(
        [helper.make_tensor_value_info("ranks", TensorProto.FLOAT, [*before, EXPERTS])],
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [*before, TOP_K])],
    )


def by_onnxruntime(model: onnx.ModelProto, ranks: F32) -> NDArray[np.int64]:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString())
    ids: NDArray[np.int64] = session.run(["ids"], {"ranks": ranks})[0]
    return ids


def by_openvino(model: onnx.ModelProto, ranks: F32) -> NDArray[np.int64]:
    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    read = core.read_model(model.SerializeToString())
    ids: NDArray[np.int64] = core.compile_model(read, "CPU", settings)({"ranks": ranks})[0]
    return ids


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("groups", [(8, 3, 1), (8, 3, 2), (3, 1, 2), (24, 7, 1)])
@pytest.mark.parametrize("run", [by_onnxruntime, by_openvino])
def test_other_runtimes_choose_as_the_op_does(run, groups, axes) -> None:
    """In onnxruntime of equal ones, too; OpenVINO's TopK (2026.4.1) promises nothing of these."""
    rng, shape = np.random.default_rng(groups), (ROWS, EXPERTS)
    ranks = rng.standard_normal(shape, np.float32) - np.float32(0.5)
    if run is by_onnxruntime:
        ranks = rng.choice(np.float32([-np.inf, -2, -0.5, 0, 0.25, 1]), shape)
    given = ranks if axes == 1 else ranks.reshape(2, -1, EXPERTS)
    ids = run(model_of(ExpertGroups(*groups), axes), given).reshape(ROWS, TOP_K)
    routes = OPS["route"].define(
        ranks,
        **{
            "top_k": TOP_K,
            "scoring": "sigmoid",
            "biased": "scores",
            "normalise": 0,
            "epsilon": 0.0,
            "scale": 1.0,
        },
        **dict(zip(("groups", "top_groups", "group_top_k"), groups, strict=True)),
    )
    for row, chosen in zip(routes, ids, strict=True):
        assert np.flatnonzero(row).tolist() == sorted(chosen.tolist())
