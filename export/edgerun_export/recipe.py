"""What an export is asked to make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from edgerun.discovery import entry_names
from edgerun.env import PACKS
from edgerun.errors import UnsupportedError

HEAD_WEIGHTS = EMBEDDING_WEIGHTS = ("int8", "int4", "fp32")
ACTIVATIONS = ("int8", "fp32")
SCALES = ("fp32", "fp16")
SOURCE = "source"  # stands for the format that holds what the checkpoint has
GROUP_SIZES = (16, 32, 64, 128, 256)
MIN_BLOCK, _MAX_HEAD_BLOCK = 16, 128


def weight_names() -> list[str]:
    """Formats that projections may have."""
    return [*entry_names("edgerun.formats", "FORMAT"), "fp32"]


def transform_names() -> list[str]:
    """Ways to other weights of the same function."""
    return entry_names("edgerun_export.transforms", "TRANSFORM")


def method_names() -> list[str]:
    """Methods that make weights of a format."""
    return entry_names("edgerun_export.quantize", "METHOD")


@dataclass(frozen=True, slots=True)
class Profile:
    """Which runtimes a bundle is written for.

    Attributes:
        attention: the way attention is written, a key of ``ATTENTION``.
        data_file: name of the file with the weights.
        has_positions: whether the graph takes ``position_ids``; fused attention counts by itself.
        shares_cache: whether past and present may be one buffer in onnxruntime-genai.
        openvino: whether files for openvino-genai are added.
        fuses_experts: whether a layer of experts is one operator of onnxruntime, where it can be.
    """

    attention: str = "standard"
    data_file: str = "model.onnx.data"
    has_positions: bool = True
    shares_cache: bool = False
    openvino: bool = False
    fuses_experts: bool = False


PROFILES = {
    "portable": Profile(),
    "genai": Profile(attention="fused", has_positions=False, shares_cache=True, fuses_experts=True),
    # OpenVINO looks for weights in a file named like its model, so the ONNX graph uses that one.
    "openvino": Profile(data_file="openvino_model.bin", openvino=True),
}


@dataclass(frozen=True, slots=True)
class TensorRecipe:
    """How one projection is stored.

    Attributes:
        weights: its format.
        group_size: weights that share a scale.
        method: how it is quantised; None for the usual way of its format.
    """

    weights: str
    group_size: int
    method: str | None = None

    @property
    def bits(self) -> int:
        """Bits of a stored weight."""
        from edgerun.formats import format_named  # with NumPy, for which `--help` does not wait

        return 32 if self.weights == "fp32" else format_named(self.weights).bits


@dataclass(frozen=True, slots=True)
class Recipe:
    """A validated set of export options; make it with ``make_recipe``.

    Attributes:
        weights: format of the projections.
        group_size: weights that share a scale.
        head_weights: format of the head.
        embedding_weights: format of the embedding; a tied head of the same format shares it.
        activations: ``int8`` lets runtimes quantise activations in their kernels
            (MatMulNBits accuracy_level 4); ``fp32`` forbids it (level 1).
        profile: which runtimes the bundle is written for, a key of ``PROFILES``.
        method: how projections are quantised; None for the usual way of their format.
        scales: type of scales in the file; fp16 where it holds them to 11 bits.
        rules: what was asked for that concerns some projections only.
        tensors: those that are stored otherwise than the rest, by their module path
            (``model.layers.0.mlp.down_proj``).
        transforms: what was done to the weights before they were rounded.
        ruled: those that a rule concerns, also where it says what holds for the rest.
    """

    weights: str
    group_size: int
    head_weights: str
    embedding_weights: str
    activations: str
    profile: str
    method: str | None
    scales: str = "fp32"
    rules: tuple[str, ...] = ()
    tensors: Mapping[str, TensorRecipe] = field(default_factory=dict)
    transforms: tuple[str, ...] = ()
    ruled: frozenset[str] = frozenset()

    @property
    def scale_bytes(self) -> int:
        """Bytes of a scale in the file."""
        return 4 if self.scales == "fp32" else 2

    def tensor(self, module: str) -> TensorRecipe:
        """How the projection at a module path is stored."""
        usual = TensorRecipe(self.weights, self.group_size, self.method)
        return self.tensors.get(module, usual)

    @property
    def accuracy_level(self) -> int:
        """The ``accuracy_level`` attribute of MatMulNBits."""
        return 4 if self.activations == "int8" else 1

    @property
    def target(self) -> Profile:
        """What the profile means."""
        return PROFILES[self.profile]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest, which has the rules themselves."""
        return {key: value for key, value in asdict(self).items() if key != "ruled"}


def make_recipe(
    weights: str,
    group_size: int | None = None,
    head_weights: str | None = None,
    activations: str | None = None,
    profile: str = "portable",
    method: str | None = None,
    transforms: Sequence[str] = (),
    scales: str = "fp32",
    embedding_weights: str | None = None,
) -> Recipe:
    """Returns a recipe; ``None`` stands for the default that suits ``weights``.

    Raises:
        UnsupportedError: an option has a value that is not offered.
    """
    from edgerun.formats import format_named

    check_choice("weights", weights, weight_names())
    if method is not None:
        check_choice("method", method, method_names())
    fp32 = weights == "fp32"
    head = head_weights or ("fp32" if fp32 else "int8")
    usual_group = 32 if fp32 else format_named(weights).group
    recipe = Recipe(
        weights=weights,
        group_size=usual_group if group_size is None else group_size,
        head_weights=head,
        embedding_weights=embedding_weights or ("fp32" if head == "fp32" else "int8"),
        activations=activations or ("fp32" if fp32 else "int8"),
        profile=profile,
        method=method,
        transforms=tuple(transforms),
        scales=scales,
    )
    for name in transforms:
        check_choice("transform", name, transform_names())
    check_choice("group-size", recipe.group_size, GROUP_SIZES)
    check_choice("head-weights", recipe.head_weights, HEAD_WEIGHTS)
    check_choice("embedding-weights", recipe.embedding_weights, EMBEDDING_WEIGHTS)
    check_choice("activations", recipe.activations, ACTIVATIONS)
    check_choice("profile", recipe.profile, tuple(PROFILES))
    check_choice("scales", recipe.scales, SCALES)
    return recipe


def vocabulary_block(width: int, group_size: int) -> int:
    """Weights of an embedding's row that share a scale: whole blocks, at most ``group_size``.

    Raises:
        UnsupportedError: the rows cannot be cut into whole blocks.
    """
    block = min(width & -width, group_size, _MAX_HEAD_BLOCK)
    if block < MIN_BLOCK:
        raise UnsupportedError(
            "a quantised embedding or head needs a hidden_size that is a multiple of "
            f"{MIN_BLOCK}, not {width}; use --head-weights fp32, and leave --embedding-weights out"
        )
    return block


def usual_head(width: int) -> str | None:
    """Format of a head whose rows of ``width`` have no whole blocks; None if they have."""
    return "fp32" if width % MIN_BLOCK else None


def check_pack(pack: str, weights: str) -> None:
    """Checks a hint about how to keep weights in memory.

    Raises:
        UnsupportedError: it is not offered, or asks for trits of weights that are not ternary.
    """
    check_choice("pack", pack, PACKS)
    if pack == "trits" and weights != "ternary":
        raise UnsupportedError(
            f"--pack trits holds ternary weights only and these are {weights}: "
            "leave it out, or choose --weights ternary"
        )


def check_weights(weights: str) -> None:
    """Checks a format where that of the checkpoint may be asked for as well.

    Raises:
        UnsupportedError: it is not offered.
    """
    check_choice("weights", weights, (*weight_names(), SOURCE))


def check_choice(option: str, value: object, allowed: Sequence[object]) -> None:
    """Checks what an option of the command line was given.

    Raises:
        UnsupportedError: it is not among what is allowed.
    """
    if value not in allowed:
        names = ", ".join(map(str, allowed))
        raise UnsupportedError(f"--{option} {value} is not supported; choose one of: {names}")
