"""A bundle whose layers differ: what the exporter wrote, with other heads in its last layer."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

ROTARY = "/model/rotary/"


class Surgery:
    """Divides the rows of a layer's queries, keys and values into other heads."""

    def __init__(self, bundle: AlteredBundle, layer: int) -> None:
        self.bundle, self.layer = bundle, layer
        self.at = f"/model/layers.{layer}/self_attn"
        self.nodes = bundle.model.graph.node

    def constant(self, name: str, values: np.ndarray) -> str:
        self.bundle.model.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    def add(self, before: str, op: str, inputs: list[str], name: str, **attributes: int) -> str:
        place = next(place for place, node in enumerate(self.nodes) if node.name == before)
        self.nodes.insert(place, helper.make_node(op, inputs, [f"{name}/out"], name, **attributes))
        return f"{name}/out"

    def heads(self, counts: dict[str, int], head_dim: int) -> None:
        for projection, count in counts.items():
            shape = np.array([0, 0, count, head_dim], np.int64)
            name = self.constant(f"unlike/{projection}", shape)
            self.bundle.node(f"{self.at}/{projection}/Reshape").input[1] = name
        self.bundle.set(f"{self.at}/Attention", scale=head_dim**-0.5)
        for value in [*self.bundle.model.graph.input, *self.bundle.model.graph.output]:
            if f".{self.layer}." in value.name:
                sizes = value.type.tensor_type.shape.dim
                sizes[1].dim_value, sizes[3].dim_value = counts["k_proj"], head_dim

    def rotary(self, head_dim: int) -> None:
        """Tables of its own, of as many frequencies as a head has pairs."""
        half = head_dim // 2
        frequencies = (10000.0 ** (-np.arange(half) / half)).astype(np.float32)
        names = {"model.rotary.inv_freq": self.constant("unlike/inv_freq", frequencies)}
        tables = [node for node in self.nodes if node.name.startswith(ROTARY)]
        for node in tables[2:]:  # behind the positions
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = node.name.replace(ROTARY, "/unlike/rotary/")
            copy.output[0] = f"{copy.name}/out"
            copy.input[:] = [names.get(name, name) for name in node.input]
            names[node.output[0]] = copy.output[0]
            place = next(place for place, other in enumerate(self.nodes) if other is tables[-1])
            self.nodes.insert(place + 1, copy)
            tables.append(self.nodes[place + 1])
        middle = self.constant("unlike/middle", np.array([half], np.int64))
        for at in (f"{self.at}/q_rotary", f"{self.at}/k_rotary"):
            self.bundle.node(f"{at}/upper").input[1] = middle
            self.bundle.node(f"{at}/lower").input[2] = middle
            for part in ("cos", "sin"):
                node = self.bundle.node(f"{at}/{part}")
                node.input[1] = names[node.input[1]]

    def window(self, size: int) -> None:
        """A mask of its own."""
        before = f"{self.at}/Attention"
        rows, columns = (self.bundle.value(f"/model/mask/{name}") for name in ("rows", "columns"))
        window = self.constant("unlike/window", np.array(size, np.int64))
        oldest = self.add(before, "Sub", [rows, window], "/unlike/oldest")
        recent = self.add(before, "Greater", [columns, oldest], "/unlike/recent")
        causal = [self.bundle.value("/model/mask/causal"), recent]
        visible = self.add(before, "And", causal, "/unlike/visible")
        mask = [visible, self.bundle.value("/model/mask/padding")]
        self.bundle.node(before).input[3] = self.add(before, "And", mask, "/unlike/mask")


def unlike(source: Path, folder: Path, *, window: int = 5) -> AlteredBundle:
    """A copy of a bundle of two layers; the second has half as many heads, and sees a window.

    Args:
        source: of 4 heads of 16 elements, and 2 of keys and values, in both layers.
        folder: of the copy, to be saved.
        window: positions that a row sees in the second layer.
    """
    bundle = AlteredBundle(source, folder)
    surgery = Surgery(bundle, 1)
    surgery.heads({"q_proj": 2, "k_proj": 1, "v_proj": 1}, 32)
    surgery.rotary(32)
    surgery.window(window)
    bundle.manifest["model"] |= {"num_heads": 0, "num_kv_heads": 0, "head_dim": 0}
    return bundle


@cache
def unlike_of(name: str, **options: str) -> Path:
    """The same of a golden checkpoint, once per process."""
    source = bundle_of(name, **options)
    return unlike(source, Path(mkdtemp(prefix="unlike-", dir=source.parent)) / "bundle").save()
