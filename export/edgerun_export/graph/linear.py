"""Linear layers, the embedding and the head: where weights meet the graph."""

from __future__ import annotations

from edgerun_export.architectures import DecoderSpec, Projection
from edgerun_export.architectures.decoder.storage import HEAD_BIAS, HEAD_WEIGHT
from edgerun_export.graph.blocks import FLOAT, softcapped
from edgerun_export.graph.onnx_graph import CONTRIB_DOMAIN, OnnxGraph, node_path
from edgerun_export.graph.weight_store import StoredMatrix, WeightStore
from edgerun_export.quantize import block_layout
from edgerun_export.recipe import Recipe

# Key in a node's metadata_props that tells the runtime what the codes stand for.
FORMAT_KEY = "edgerun.format"


class LinearBuilder:
    """Adds everything that multiplies by a large matrix."""

    def __init__(
        self, graph: OnnxGraph, store: WeightStore, spec: DecoderSpec, recipe: Recipe
    ) -> None:
        self._graph = graph
        self._store = store
        self._spec = spec
        self._recipe = recipe
        self._shared: StoredMatrix | str | None = None
        self._block_sums: dict[tuple[str, int], str] = {}

    def projection(self, value: str, prefix: str, linear: Projection) -> str:
        """Adds a layer's projection of ``[batch, sequence, K]`` to ``[batch, sequence, N]``.

        Args:
            value: its input.
            prefix: the layer's module path, ``model.layers.N``.
            linear: its sizes and path.
        """
        name = f"{prefix}.{linear.path}"
        at = node_path(name)
        if self._recipe.tensor(name).weights == "fp32":
            weight = self._store.transposed(f"{name}.weight")
            result = self._graph.node("MatMul", [value, weight], f"{at}/MatMul")
            if not linear.bias:
                return result
            bias = self._store.vector(f"{name}.bias")
            return self._graph.node("Add", [result, bias], f"{at}/Add")
        stored = self._store.projection(f"{name}.weight")
        bias = self._store.vector(f"{name}.bias") if linear.bias else ""
        result = self._matmul(value, stored, (linear.out_features, linear.in_features), at, bias)
        if not stored.offsets:
            return result
        inputs = [self._sums(value, linear.in_features, stored.block, at), stored.offsets]
        offset = self._graph.node("MatMul", inputs, f"{at}/offset")
        return self._graph.node("Add", [result, offset], f"{at}/Add")

    def float_projection(self, value: str, prefix: str, linear: Projection) -> str:
        """Adds a projection without a bias in float32, whatever the recipe."""
        name = f"{prefix}.{linear.path}"
        weight = self._store.transposed(f"{name}.weight")
        return self._graph.node("MatMul", [value, weight], f"{node_path(name)}/MatMul")

    def _sums(self, value: str, width: int, block: int, at: str) -> str:
        """Adds sums of blocks ``[batch, sequence, blocks]``, once for all that multiply by them."""
        key = value, block
        if key not in self._block_sums:
            shape = self._graph.integers(0, 0, width // block, block)
            blocks = self._graph.node("Reshape", [value, shape], f"{at}/blocks")
            inputs = [blocks, self._graph.integers(-1)]
            sums = self._graph.node("ReduceSum", inputs, f"{at}/block_sums", keepdims=0)
            self._block_sums[key] = sums
        return self._block_sums[key]

    def embedding(self) -> str:
        """Adds the lookup of ``input_ids``, float32 ``[batch, sequence, hidden]``."""
        self._shared = self._table(self._spec.embedding_weight)
        return self._lookup(self._shared, self._spec.hidden_size, "/model/embed_tokens")

    def lookup(self, name: str, width: int) -> str:
        """Adds the lookup of ``input_ids`` in another table, in the embedding's format."""
        return self._lookup(self._table(name), width, node_path(name.removesuffix(".weight")))

    def _table(self, name: str) -> StoredMatrix | str:
        kind = self._recipe.embedding_weights
        if kind == "fp32":
            return self._store.table(name, name)
        return self._store.vocabulary(name, kind, name)

    def vocabulary_projection(self, name: str, value: str, rows: int) -> str:
        """Adds a product with a matrix of no layer, in the embedding's format."""
        at, kind = node_path(name.removesuffix(".weight")), self._recipe.embedding_weights
        if kind == "fp32":
            return self._graph.node("MatMul", [value, self._store.transposed(name)], f"{at}/MatMul")
        stored = self._store.vocabulary(name, kind, name)
        return self._matmul(value, stored, (rows, self._spec.hidden_size), at)

    def head(self, value: str) -> str:
        """Adds the head; a tied one of the embedding's format reads its initializers."""
        spec, kind, at = self._spec, self._recipe.head_weights, "/lm_head"
        if kind == "fp32":
            return self._bounded(self._dense_head(value, at), at)
        shared = self._shared if spec.tied and kind == self._recipe.embedding_weights else None
        if not isinstance(shared, StoredMatrix):
            shared = self._store.vocabulary(spec.head_weight, kind, HEAD_WEIGHT)
        shape = spec.vocab_size, spec.hidden_size
        bias = self._store.vector(HEAD_BIAS) if spec.head_bias else ""
        return self._bounded(self._matmul(value, shared, shape, at, bias, self._ends), at)

    def _dense_head(self, value: str, at: str) -> str:
        if self._spec.tied and isinstance(self._shared, str):
            table = self._shared
        else:
            table = self._store.table(self._spec.head_weight, HEAD_WEIGHT)
        add = self._graph.node
        turned = add("Transpose", [table], f"{at}/Transpose", perm=[1, 0])
        if not self._spec.head_bias:
            return add("MatMul", [value, turned], f"{at}/MatMul", outputs=self._ends)
        product = add("MatMul", [value, turned], f"{at}/MatMul")
        bias = self._store.vector(HEAD_BIAS)
        return add("Add", [product, bias], f"{at}/Add", outputs=self._ends)

    @property
    def _ends(self) -> list[str] | None:
        """What the head's product is called: it gives the logits, unless something is behind it."""
        return ["logits"] if self._spec.softcap is None else None

    def _bounded(self, logits: str, at: str) -> str:
        """Adds ``softcap * tanh(logits / softcap)``, if the decoder has such."""
        if self._spec.softcap is None:
            return logits
        return softcapped(self._graph, logits, self._spec.softcap, at, ["logits"])

    def _lookup(self, stored: StoredMatrix | str, width: int, at: str) -> str:
        """Gathers a token's row, or its codes and scales, of which it dequantises just those."""
        add, graph = self._graph.node, self._graph
        if isinstance(stored, str):
            return add("Gather", [stored, "input_ids"], f"{at}/Gather", axis=0)
        codes = add("Gather", [stored.codes, "input_ids"], f"{at}/codes", axis=0)
        scales = add("Gather", [stored.scales, "input_ids"], f"{at}/scales", axis=0)
        codes = add("Cast", [codes], f"{at}/Cast", to=FLOAT)
        if stored.bits == 4:
            codes = self._halves_of_bytes(codes, width, stored.block, at)
        values = add("Sub", [codes, graph.scalar(1 << (stored.bits - 1))], f"{at}/Sub")
        scales = add("Unsqueeze", [scales, graph.integers(-1)], f"{at}/Unsqueeze")
        values = add("Mul", [values, scales], f"{at}/Mul")
        return add("Reshape", [values, graph.integers(0, 0, width)], f"{at}/Reshape")

    def _halves_of_bytes(self, codes: str, width: int, block: int, at: str) -> str:
        """Two codes of a byte each, the lower one first; in floats, which all runtimes divide."""
        add, graph = self._graph.node, self._graph
        codes = add("Unsqueeze", [codes, graph.integers(-1)], f"{at}/bytes")
        high = add("Mul", [codes, graph.scalar(1 / 16)], f"{at}/sixteenths")
        high = add("Floor", [high], f"{at}/high")
        low = add("Mul", [high, graph.scalar(16)], f"{at}/sixteens")
        low = add("Sub", [codes, low], f"{at}/low")
        both = add("Concat", [low, high], f"{at}/both", axis=-1)
        shape = graph.integers(0, 0, width // block, block)
        return add("Reshape", [both, shape], f"{at}/halves")

    def _matmul(
        self,
        value: str,
        stored: StoredMatrix,
        shape: tuple[int, int],
        at: str,
        bias: str = "",
        outputs: list[str] | None = None,
    ) -> str:
        inputs = [value, stored.codes, stored.scales, stored.zeros, "", bias]
        while not inputs[-1]:
            inputs.pop()
        return self._graph.node(
            "MatMulNBits",
            inputs,
            f"{at}/MatMulNBits",
            domain=CONTRIB_DOMAIN,
            outputs=outputs,
            metadata={FORMAT_KEY: block_layout(stored.format).stored_as},
            N=shape[0],
            K=shape[1],
            bits=stored.bits,
            block_size=stored.block,
            accuracy_level=self._recipe.accuracy_level,
        )
