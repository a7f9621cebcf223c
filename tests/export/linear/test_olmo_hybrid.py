"""OLMo Hybrid: how it is read, under which names its tensors may be, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

from edgerun.errors import BundleError, CheckpointError, EdgerunError, UnsupportedError
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from edgerun_export.architectures import describe
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.checkpoint.base import Affine, Checkpoint
from edgerun_export.checkpoint.views.gathered.delta import JoinedDelta
from edgerun_export.source.model import interpret
from edgerun_export.verify.numpy_model import forward
from tests.support.altered import AlteredBundle
from tests.support.bundles import GOLDEN, bundle_of, config_of, spec_without

NAME, AT = "olmo_hybrid", "model.layers.0.linear_attn"
LINEAR, FULL = "linear_attention", "full_attention"
SPIRAL = {"rope_type": "spiral", "rope_theta": 100.0}
Tensors = dict[str, np.ndarray]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"hidden_act": "gelu"}, UnsupportedError, "olmo_hybrid .* with hidden_act 'gelu'"),
        ({"layer_types": [LINEAR] * 3}, UnsupportedError, "without a layer of attention"),
        ({"layer_types": [FULL]}, CheckpointError, "names 1 layers, the model has 3"),
        ({"layer_types": [FULL, "mamba", LINEAR]}, UnsupportedError, "with layers of 'mamba'"),
        ({"linear_num_value_heads": 3}, CheckpointError, "3 is not a multiple of .*_key_heads 2"),
        ({"linear_conv_kernel_dim": 1}, UnsupportedError, "a linear_conv_kernel_dim of 1, whose"),
        ({"linear_key_head_dim": -8}, CheckpointError, "'linear_key_head_dim' is -8"),
        ({"rope_parameters": SPIRAL}, UnsupportedError, "rope type 'spiral'"),
    ],
)
def test_configurations_that_are_none_are_refused(
    changes: dict[str, Any], error: type[EdgerunError], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe(config_of(NAME, **changes))


def test_norms_are_before_parts_or_behind_them() -> None:
    spec = describe(config_of(NAME))
    names = [f"{name}_layernorm" for name in ("post_attention", "post_feedforward")]
    assert [spec.norms(layer).keys() & {"input_layernorm", *names} for layer in range(3)] == [
        {"input_layernorm", names[0]},
        {*names},
        {"input_layernorm", names[0]},
    ]
    assert spec.epsilon(f"{AT.rpartition('.')[2]}.norm") == 1e-5
    assert {spec.epsilon(name) for name in names} == {0.01}


def test_sizes_that_are_left_out_follow_from_others() -> None:
    keys = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    spec = spec_without(NAME, *(f"linear_{key}" for key in keys), "linear_allow_neg_eigval")
    delta = spec.layers[0].delta
    assert delta is not None
    assert (delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim) == (4, 4, 12, 24)
    assert delta.strength == 2.0
    delta = describe(config_of(NAME, linear_allow_neg_eigval=False)).layers[0].delta
    assert delta is not None and delta.strength == 1.0


@pytest.mark.parametrize(
    ("layers", "attending"), [(2, [1]), (3, [2]), (4, [3]), (9, [3, 7])], ids=str
)
def test_every_fourth_layer_attends_or_the_last(layers: int, attending: list[int]) -> None:
    spec = spec_without(NAME, "layer_types", num_hidden_layers=layers)
    assert [layer for layer in range(layers) if spec.attends(layer)] == attending


@pytest.mark.parametrize(
    ("changes", "theta"),
    [
        ({"rope_parameters": None}, 10000.0),
        ({"rope_parameters": None, "rope_theta": None}, None),
        ({"rope_parameters": None, "rope_theta": 500.0}, 500.0),
        ({"rope_theta": 500.0}, None),
        ({"rope_scaling": {"rope_type": "linear", "factor": 1.0}}, 10000.0),
    ],
)
def test_attention_has_no_rope_where_its_base_is_null(
    changes: dict[str, Any], theta: float | None
) -> None:
    """As transformers reads it, for which silence is no null."""
    spec = describe(config_of(NAME, **changes))
    turning = spec.rope_of(1)
    assert (turning is None) == (theta is None)
    if turning is not None and theta is not None:
        assert np.isclose(turning.inv_freq[1], theta ** (-1 / 8), rtol=1e-6)


def altered(folder: Path, alter: Callable[[Tensors], None]) -> Path:
    """The golden checkpoint with other tensors."""
    copy = Path(shutil.copytree(GOLDEN / NAME, folder / "checkpoint"))
    tensors = load_file(copy / "model.safetensors")
    alter(tensors)
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, copy / "model.safetensors")
    return copy


def as_released(tensors: Tensors) -> None:
    """Convolutions of queries, keys and values apart."""
    for layer in (0, 2):
        module = f"model.layers.{layer}.linear_attn"
        whole = tensors.pop(f"{module}.conv1d.weight")
        for name, part in zip("qkv", np.split(whole, [32, 64]), strict=True):
            tensors[f"{module}.{name}_conv1d.weight"] = part


def in_thirds(tensors: Tensors) -> None:
    """As transformers writes them, wherever they end."""
    for layer in (0, 2):
        module = f"model.layers.{layer}.linear_attn"
        whole = tensors.pop(f"{module}.conv1d.weight")
        for name, part in zip("qkv", np.split(whole, 3), strict=True):
            tensors[f"{module}.{name}_conv1d.weight"] = part


def with_own_names(tensors: Tensors) -> None:
    """Norms are called as transformers calls them while it computes."""
    own = {"attention_layer_norm": "input_layernorm"}
    own |= {"feedforward_layer_norm": "post_attention_layernorm"}
    for name in [*tensors]:
        kind = name.split(".")[-2]
        if kind in own:
            tensors[name.replace(kind, own[kind])] = tensors.pop(name)


@pytest.mark.parametrize("alter", [as_released, in_thirds, with_own_names])
def test_other_names_of_tensors_mean_the_same(
    alter: Callable[[Tensors], None], tmp_path: Path
) -> None:
    ids = np.arange(9)
    logits = []
    for folder in (GOLDEN / NAME, altered(tmp_path, alter)):
        with open_checkpoint(str(folder)) as checkpoint:
            source, _ = interpret(checkpoint)
            logits.append(forward(source.spec, source, ids))
            assert source.unread() == [source.spec.embedding_weight]  # of which some rows were
    np.testing.assert_array_equal(*logits)


def test_a_norm_under_both_of_its_names_is_refused(tmp_path: Path) -> None:
    def alter(tensors: Tensors) -> None:
        tensors["model.layers.0.input_layernorm.weight"] = np.ones(64, np.float32)

    said = r"'model\.layers\.0\.input_layernorm\.weight' is there twice, the other time as"
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(str(altered(tmp_path, alter)))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("k_proj", None, r"has no tensor '.*in_proj_qkv\.weight', which olmo_hybrid needs"),
        (
            "v_proj",
            (129, 64),
            r"in_proj_qkv\.weight' has shape \[193, 64\]; .* asks for \[192, 64\]",
        ),
        ("k_proj", (33, 64), r"has no tensor '.*in_proj_qkv\.weight'"),
        ("q_proj k_proj", (48, 64), r"has no tensor '.*in_proj_qkv\.weight'"),
        ("k_proj", (32, 63), r"has no tensor '.*in_proj_qkv\.weight'"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    name: str, shape: tuple[int, int] | None, message: str, tmp_path: Path
) -> None:
    def alter(tensors: Tensors) -> None:
        for each in name.split():
            del tensors[f"{AT}.{each}.weight"]
            if shape is not None:
                tensors[f"{AT}.{each}.weight"] = np.ones(shape, np.float32)

    with (
        open_checkpoint(str(altered(tmp_path, alter))) as checkpoint,
        pytest.raises(CheckpointError, match=message),
    ):
        interpret(checkpoint)


class Coded:
    """The golden checkpoint with codes, or codes and offsets, for some of its tensors."""

    def __init__(self, checkpoint: Checkpoint, groups: dict[str, int]) -> None:
        self.checkpoint, self.groups = checkpoint, groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self.checkpoint, name)

    def integers(self, name: str, rows: slice) -> tuple[Any, ...] | None:
        part = name.rpartition(".linear_attn.")[2].partition("_")[0]
        if part not in self.groups:
            return None
        scales = np.full((rows.stop - rows.start, self.groups[part]), ord(part), np.float32)
        return np.zeros((len(scales), 64), np.int8), scales

    def affine(self, name: str, rows: slice) -> Affine | None:
        coded = self.integers(name, rows)
        return coded and Affine(*coded, coded[1])


@pytest.mark.parametrize(
    ("groups", "is_coded"),
    [
        ({"q": 2, "k": 2, "v": 2}, True),
        ({"q": 2, "k": 2}, False),
        ({"q": 2, "k": 1, "v": 2}, False),
    ],
)
def test_codes_of_parts_are_those_of_the_whole(groups: dict[str, int], is_coded: bool) -> None:
    name = f"{AT}.in_proj_qkv.weight"
    with open_checkpoint(str(GOLDEN / NAME)) as checkpoint:
        stored: Any = Coded(checkpoint._checkpoint, groups)  # type: ignore[attr-defined]
        whole = JoinedDelta(stored)
        for coded in (whole.integers(name, slice(30, 66)), whole.affine(name, slice(30, 66))):
            assert (coded is not None) == is_coded
            if coded is not None:
                parts = [*[ord("q")] * 2, *[ord("k")] * 32, *[ord("v")] * 2]
                np.testing.assert_array_equal(coded[1][:, 0], parts)
        assert whole.integers(name, slice(0, 9)) is not None


@pytest.mark.parametrize("profile", ["portable", "genai"])
def test_a_change_may_count_twice(profile: str) -> None:
    path = bundle_of(NAME, weights="int4", profile=profile) / "model.onnx"
    graph = lower(read_graph(path, path.read_bytes()))
    nodes = [node for node in graph.nodes if node.op == "gated_delta"]
    assert [node.attrs["strength"] for node in nodes] == [2.0, 2.0]


@pytest.mark.parametrize(
    ("strength", "message"),
    [
        (np.float32(2.5), r"strength = 2\.5; expected a number from 0"),
        (np.array([2, 1], np.float32), "strength = None"),
    ],
)
def test_what_changes_are_multiplied_by_is_one_number_up_to_2(
    strength: np.ndarray, message: str, tmp_path: Path
) -> None:
    bundle = AlteredBundle(bundle_of(NAME, weights="int4"), tmp_path / "bundle")
    bundle.model.graph.initializer.append(numpy_helper.from_array(np.asarray(strength), "own"))
    bundle.node("layers.0/linear_attn/write/Mul").input[1] = "own"
    path = bundle.save() / "model.onnx"
    with pytest.raises(BundleError, match=message):
        lower(read_graph(path, path.read_bytes()))
