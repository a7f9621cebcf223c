"""Rotations and scales that are learnt: what is folded in changes nothing."""

import numpy as np
import pytest

from edgerun.formats import format_named
from edgerun_export.architectures.decoder.storage import HEAD_WEIGHT
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.source.model import interpret
from edgerun_export.transforms import check_unchanged
from tools.rotations.fold import PAIRS, LayerPairs, fold_ends, fold_layer
from tools.torch_llama.save import save_checkpoint

NORMS = ("input_layernorm", "post_attention_layernorm")


@pytest.fixture(params=["llama-yarn", "llama-linear"])
def llama(request, repo_root):
    with open_checkpoint(str(repo_root / "tests" / "golden" / request.param)) as checkpoint:
        yield checkpoint, interpret(checkpoint)[0]


def orthogonal(random, size):
    return np.linalg.qr(random.standard_normal((size, size)))[0]


def folded(source, leave_out=None):
    """All weights with random pairs; one of them may be missing on its way back."""
    random, spec = np.random.default_rng(0), source.spec
    rotation = orthogonal(random, spec.hidden_size)
    sizes = {
        "attention": spec.hidden_size,
        "values": (spec.num_kv_heads, spec.head_dim),
        "mlp": spec.hidden_size,
        "up": spec.intermediate_size,
    }
    head = source.matrix(source.head_name())
    ends = (source.matrix(spec.embedding_weight), head, source.vector(spec.final_norm_weight))
    out = fold_ends(spec, *ends, rotation)
    for layer in range(spec.num_layers):
        names = {
            each.name: f"model.layers.{layer}.{each.path}.weight"
            for each in spec.projections(layer)
        }
        weights = {name: source.matrix(path) for name, path in names.items()}
        paths = {norm: f"model.layers.{layer}.{norm}.weight" for norm in NORMS}
        weights |= {norm: source.vector(path) for norm, path in paths.items()}
        scales = {name: np.exp(random.standard_normal(sizes[name])) for name in PAIRS}
        pairs = LayerPairs(orthogonal(random, spec.head_dim), scales)
        for name, value in fold_layer(spec, weights, rotation, pairs).items():
            if name != leave_out:
                out[{**names, **paths}[name]] = value
    return {name: np.asarray(value, np.float32) for name, value in out.items()}


def test_rotations_and_scales_change_weights_but_not_what_is_computed(llama, tmp_path):
    checkpoint, source = llama
    changed = folded(source)
    save_checkpoint(checkpoint, source, changed, tmp_path)
    ids = np.random.default_rng(1).integers(0, source.spec.vocab_size, 24)
    with open_checkpoint(str(tmp_path)) as written:
        after, _ = interpret(written)
        assert not after.spec.tied
        assert set(changed) == set(after.spec.tensors())
        check_unchanged(source, after, ids)
        for name in changed:
            if name in source.spec.tensors() and source.vector(name).ndim == 2:
                assert np.abs(after.matrix(name) - source.matrix(name)).max() > 1e-2, name


def test_a_norm_that_silences_an_element_is_folded_into_the_head(llama):
    _, source = llama
    norm = source.vector(source.spec.final_norm_weight).copy()
    norm[3] = 0
    head, random = source.matrix(source.head_name()), np.random.default_rng(2)
    rotation = orthogonal(random, source.spec.hidden_size)
    ends = fold_ends(source.spec, head, head, norm, rotation)
    assert (ends[source.spec.final_norm_weight] == 1).all()
    x = random.standard_normal(source.spec.hidden_size)
    np.testing.assert_allclose(ends[HEAD_WEIGHT] @ (x @ rotation), head @ (norm * x), atol=1e-6)


@pytest.mark.parametrize("name", ["input_layernorm", "v_proj", "o_proj", "down_proj", "up_proj"])
def test_a_pair_with_one_half_is_noticed(llama, tmp_path, name):
    from edgerun_export.verify.compare import VerificationError

    checkpoint, source = llama
    save_checkpoint(checkpoint, source, folded(source, leave_out=name), tmp_path)
    with open_checkpoint(str(tmp_path)) as written, pytest.raises(VerificationError):
        check_unchanged(source, interpret(written)[0], np.arange(24) % source.spec.vocab_size)


class TestWithTorch:
    """What learns."""

    @pytest.fixture(autouse=True)
    def torch(self):
        torch = pytest.importorskip("torch")
        torch.manual_seed(0)
        torch.set_num_threads(1)
        return torch

    def test_steps_stay_rotations(self, torch):
        from tools.rotations.rounding import cayley, random_rotation

        step = cayley(torch.randn(16, 16, dtype=torch.float64))
        turned = random_rotation(16, 0) @ step
        assert (step - torch.eye(16)).abs().max() > 0.1
        np.testing.assert_allclose(turned @ turned.T, np.eye(16), atol=1e-12)

    def test_weights_are_rounded_to_a_grid_and_gradients_pass(self, torch):
        from tools.rotations.rounding import rounded_inputs, rounded_weights

        weight = torch.randn(3, 40, requires_grad=True)
        rounded = rounded_weights(weight, format_named("int2"), 32)
        for row in range(3):
            assert len(rounded[row, :32].detach().unique()) <= 4
        rounded.sum().backward()
        assert (weight.grad == 1).all()
        inputs = torch.randn(5, 64)
        assert len(rounded_inputs(inputs, 4)[0].unique()) <= 15
        assert torch.equal(rounded_inputs(inputs, 16), inputs)
        error = (rounded_inputs(inputs, 8) - inputs).abs().amax(-1)
        assert (error <= inputs.abs().amax(-1) / 127 / 2 * 1.001).all()

    def test_learning_loses_less_and_leaves_the_function(self, llama, torch, tmp_path):
        from tools.rotations.__main__ import Pairs, changed, learn, parse_kind

        checkpoint, source = llama
        ids = np.random.default_rng(0).integers(0, source.spec.vocab_size, (4, 24))
        pairs = Pairs(source, 0)
        losses = learn(source, ids, pairs, parse_kind("int2:32", 8), 20, 4, 2e-2)
        assert np.mean(losses[-3:]) < 0.9 * losses[0]
        save_checkpoint(checkpoint, source, changed(source, pairs), tmp_path)
        with open_checkpoint(str(tmp_path)) as written:
            check_unchanged(source, interpret(written)[0], ids[0])
