"""Bundles altered as an attacker would: every digest in the manifest is right."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper


class AlteredBundle:
    """A copy of a bundle; ``save`` writes what was changed, with digests that agree.

    Attributes:
        folder: of the copy.
        model: its ONNX model; external data stays in its file.
        manifest: its manifest.
    """

    def __init__(self, source: Path, folder: Path) -> None:
        shutil.copytree(source, folder)
        self.folder = folder
        self.model = onnx.load(folder / "model.onnx", load_external_data=False)
        self.manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())

    def node(self, name: str) -> onnx.NodeProto:
        """The node whose name ends so."""
        return next(node for node in self.model.graph.node if node.name.endswith(name))

    def value(self, name: str, output: int = 0) -> str:
        """The name of what the node whose name ends so computes."""
        return str(self.node(name).output[output])

    def set(self, name: str, **attributes: Any) -> None:
        """Sets attributes of a node."""
        node = self.node(name)
        for key, value in attributes.items():
            for old in [attribute for attribute in node.attribute if attribute.name == key]:
                node.attribute.remove(old)
            node.attribute.append(helper.make_attribute(key, value))

    def initializer(self, name: str) -> onnx.TensorProto:
        """An initializer."""
        return next(tensor for tensor in self.model.graph.initializer if tensor.name == name)

    def array(self, name: str) -> NDArray[Any]:
        """The values of an initializer."""
        return numpy_helper.to_array(self.initializer(name), str(self.folder))

    def put(self, name: str, values: NDArray[Any]) -> None:
        """Replaces the values of an initializer, of any shape and type; they lie in the model."""
        self.initializer(name).CopyFrom(numpy_helper.from_array(values, name))

    def give(self, name: str, place: int, values: list[int]) -> None:
        """Has the node whose name ends so read other integers, alone of all nodes."""
        initializer = numpy_helper.from_array(np.array(values, np.int64), "other")
        self.model.graph.initializer.append(initializer)
        self.node(name).input[place] = "other"

    def resize(self, projection: str, n: int | None = None, k: int | None = None) -> None:
        """Gives a quantised projection another N or K; the node itself stays consistent."""
        node = self.node(f"/{projection}/MatMulNBits")
        sizes = {attribute.name: attribute.i for attribute in node.attribute}
        n, k = n or sizes["N"], k or sizes["K"]
        for name in node.input[1:3]:
            values = self.array(name)
            self.put(name, np.resize(values, (n, -(-k // sizes["block_size"]), *values.shape[2:])))
        self.set(node.name, N=n, K=k)

    def save(self) -> Path:
        """Writes model and manifest; returns the folder."""
        data = self.model.SerializeToString()
        (self.folder / "model.onnx").write_bytes(data)
        entry = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        self.manifest["files"]["model.onnx"] = entry
        (self.folder / "manifest.json").write_text(json.dumps(self.manifest))
        return self.folder


Alteration = Callable[[AlteredBundle], None]


def gives_no(kind: str) -> Alteration:
    """Of a kind of state nothing is an output any more, though nodes compute it."""

    def alter(bundle: AlteredBundle) -> None:
        outputs = bundle.model.graph.output
        rest = [value for value in outputs if not value.name.endswith(f".{kind}")]
        del outputs[:]
        outputs.extend(rest)

    return alter
