"""What stands beside the residual stream that a layer sees: more streams, inputs, a short way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgerun_export.architectures.decoder.layer import Projection


@dataclass(frozen=True, slots=True)
class AltUp:
    """Several residual streams, of which layers see the first (Baykal et al. 2023, Gemma 3n).

    The others begin as products with the embedding, made as large as it is. Before a layer each
    stream becomes a sum of all, behind it each is corrected by what the layer changed of the first;
    by how much, a router says, which reads the first. What layers make of their inputs is added to
    the others. In the end these are multiplied back, made as large as the first, and averaged.

    Attributes:
        count: streams.
        scales_output: the first stream is multiplied by a vector before it opens the gate of the
            layer's inputs.
    """

    count: int
    scales_output: bool = True

    floor: ClassVar[float] = 1e-5  # of means of squares that are divided by
    norm: ClassVar[str] = "altup.router_norm"
    router: ClassVar[str] = "altup.modality_router"
    prediction: ClassVar[str] = "altup.prediction_coefs"
    correction: ClassVar[str] = "altup.correction_coefs"
    output_scale: ClassVar[str] = "altup.correct_output_scale"

    @property
    def begins(self) -> tuple[str, ...]:
        """What makes the other streams of the embedding."""
        return self._numbered("model.altup_projections")

    @property
    def ends(self) -> tuple[str, ...]:
        """What multiplies them in the end."""
        return self._numbered("model.altup_unembed_projections")

    def _numbered(self, module: str) -> tuple[str, ...]:
        return tuple(f"{module}.{number}.weight" for number in range(self.count - 1))

    def tensors(self, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """The tensors that belong to no layer, with their shapes."""
        return dict.fromkeys((*self.begins, *self.ends), (hidden_size, hidden_size))

    def layer_tensors(self, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """What a layer has beside the norm, by path; never quantised."""
        count = self.count
        vectors: dict[str, tuple[int, ...]] = {}
        if self.scales_output:
            vectors[self.output_scale] = (hidden_size,)
        return {
            f"{self.router}.weight": (count, hidden_size),
            f"{self.prediction}.weight": (count * count, count),
            f"{self.correction}.weight": (count, count),
            **vectors,
        }


@dataclass(frozen=True, slots=True)
class Laurel:
    """A narrow way past attention (LAuReL; Menghani et al. 2024, Gemma 3n).

    What attention reads, and a norm of a product with two narrow matrices, is added to the stream
    beside what attention adds; all of it is divided by the root of 2.

    Attributes:
        rank: elements between the two.
    """

    rank: int

    norm: ClassVar[str] = "laurel.post_laurel_norm"
    readers: ClassVar[tuple[tuple[str, ...], ...]] = (("laurel_right",),)

    def projections(self, hidden_size: int) -> dict[str, Projection]:
        """The two matrices by their short names."""
        shapes = {"left": (self.rank, hidden_size), "right": (hidden_size, self.rank)}
        return {
            f"laurel_{side}": Projection(f"laurel_{side}", f"laurel.linear_{side}", *shape)
            for side, shape in shapes.items()
        }


@dataclass(frozen=True, slots=True)
class PerLayerInputs:
    """What every layer is given of a token beside the residual stream (Gemma 3n and 4).

    A row of a table of its own plus a normalised product with the token's embedding, a part for
    each layer. A layer multiplies its part by a gate made of the residual stream, and adds what a
    projection makes of that.

    Attributes:
        width: elements of a layer's part.
        norm_eps: epsilon of the norm of the products, part by part.
    """

    width: int
    norm_eps: float

    table: ClassVar[str] = "model.embed_tokens_per_layer.weight"
    projection: ClassVar[str] = "model.per_layer_model_projection.weight"
    norm: ClassVar[str] = "model.per_layer_projection_norm"
    out_norm: ClassVar[str] = "post_per_layer_input_norm"

    def projections(self, hidden_size: int) -> dict[str, Projection]:
        """What makes the gate in a layer, and what makes that which is added."""
        shapes = {
            "per_layer_input_gate": (self.width, hidden_size),
            "per_layer_projection": (hidden_size, self.width),
        }
        return {name: Projection(name, name, *shape) for name, shape in shapes.items()}

    def tensors(self, layers: int, hidden_size: int, vocab_size: int) -> dict[str, tuple[int, ...]]:
        """The tensors that belong to no layer, with their shapes."""
        return {
            self.table: (vocab_size, layers * self.width),
            self.projection: (layers * self.width, hidden_size),
            f"{self.norm}.weight": (self.width,),
        }
