"""Makes the folder that openvino-genai opens out of an unmodified bundle.

openvino-genai wants the cache inside the model and an input that reorders it for beam search, as
optimum-intel writes models; the graph itself stays as the bundle has it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


def write_openvino_folder(bundle: Path, folder: Path) -> None:
    """Converts ``bundle`` to ``folder`` with ``openvino_model.xml`` and its configuration."""
    import openvino

    model = openvino.Core().read_model(bundle / "model.onnx")
    make_stateful(model)
    folder.mkdir()
    openvino.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    for name in ("config.json", "generation_config.json"):
        shutil.copy(bundle / name, folder / name)


def make_stateful(model: Any) -> None:
    """Turns past and present keys and values into variables that start empty."""
    import numpy as np
    from openvino import opset13 as ops
    from openvino._offline_transformations import apply_make_stateful_transformation

    axis = ops.constant(0, dtype=np.int64)
    first = ops.constant([0], dtype=np.int64)
    batch = ops.gather(ops.shape_of(model.input("input_ids")), first, axis)
    beam = ops.parameter([-1], np.int32, name="beam_idx")
    beam.output(0).get_tensor().set_names({"beam_idx"})
    pairs = {}
    for value in [v for v in model.inputs if v.any_name.startswith("past_key_values")]:
        readers = value.get_target_inputs()
        reordered = ops.gather(value.get_node(), beam, axis)
        for reader in readers:
            reader.replace_source_output(reordered.output(0))
        pairs[value.any_name] = value.any_name.replace("past_key_values", "present")
    model.add_parameters([beam])
    apply_make_stateful_transformation(model, pairs)
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            shape = node.get_output_partial_shape(0)
            heads, width = shape[1].get_length(), shape[3].get_length()
            empty = ops.concat([batch, ops.constant([heads, 0, width], dtype=np.int64)], 0)
            zero = ops.constant(0, dtype=np.float32)
            node.set_arguments([ops.broadcast(zero, empty).output(0)])
    model.validate_nodes_and_infer_types()
