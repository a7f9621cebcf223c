"""The ONNX graph as a stateful IR, whose constants are the ONNX graph's own weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
from openvino import opset13 as ops
from openvino._offline_transformations import apply_make_stateful_transformation

from edgerun.errors import UnsupportedError
from edgerun_export.graph.external_data import DataWriter, find_data
from edgerun_export.openvino_ir.ir import Constants, write_ir

IR_FILE = "openvino_model.xml"
# What a plug-in heeds unless its caller says otherwise: activations are not to be rounded.
UNROUNDED = ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"]


def write_stateful(model_path: Path, data: DataWriter) -> None:
    """Writes ``openvino_model.xml`` beside an ONNX model.

    OpenVINO looks for an IR's constants in the file that is named like it, ``.bin``. Weights are
    found there by content, since OpenVINO keeps packed codes and scales as they are in the ONNX
    graph; what it adds (zero points, axes) is appended.

    Args:
        model_path: the ONNX model, whose weights lie in ``data``.
        data: ``openvino_model.bin``.

    Raises:
        UnsupportedError: OpenVINO cannot read the model.
        OSError: a file cannot be written.
    """
    data.flush()
    model = _read(model_path)
    make_stateful(model)
    graph = onnx.load(str(model_path), load_external_data=False).graph
    write_ir(model, model_path.with_name(IR_FILE), Constants(data, find_data(graph.initializer)))


def make_stateful(model: Any) -> None:
    """Turns what layers remember into variables that start empty, or as zeros if their size stays.

    As optimum-intel writes models: ``beam_idx`` int32 ``[batch]`` says which sequence's past each
    row of the batch goes on from. A model with weights of two bits says that its activations are
    not to be rounded: OpenVINO 2026.4 has no such product for them where a CPU has VNNI, asks for
    one all the same, and fails.
    """
    axis = ops.constant(0, dtype=np.int64)
    first = ops.constant([0], dtype=np.int64)
    batch = ops.gather(ops.shape_of(model.input("input_ids")), first, axis)
    beam = ops.parameter([-1], np.int32, name="beam_idx")
    beam.output(0).get_tensor().set_names({"beam_idx"})
    pairs = {}
    for past in [value for value in model.inputs if value.any_name.startswith("past_key_values")]:
        readers = past.get_target_inputs()
        reordered = ops.gather(past.get_node(), beam, axis)
        for reader in readers:
            reader.replace_source_output(reordered.output(0))
        pairs[past.any_name] = past.any_name.replace("past_key_values", "present")
    model.add_parameters([beam])
    apply_make_stateful_transformation(model, pairs)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ReadValue":
            shape = node.get_output_partial_shape(0)
            sizes = [0 if size.is_dynamic else size.get_length() for size in list(shape)[1:]]
            empty = ops.concat([batch, ops.constant(sizes, dtype=np.int64)], 0)
            zero = ops.constant(0, dtype=np.float32)
            node.set_arguments([ops.broadcast(zero, empty).output(0)])
    model.validate_nodes_and_infer_types()
    if any(node.get_element_type() == openvino.Type.u2 for node in _constants(model)):
        model.set_rt_info("0", UNROUNDED)


def _constants(model: Any) -> list[Any]:
    return [node for node in model.get_ordered_ops() if node.get_type_name() == "Constant"]


def _read(path: Path) -> Any:
    try:
        return openvino.Core().read_model(path)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise UnsupportedError(
            f"OpenVINO {openvino.get_version()} cannot read this model ({reason}); update "
            "OpenVINO or use --profile portable"
        ) from error
