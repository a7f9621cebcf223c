"""Writes tests/golden: tiny random checkpoints with the logits that transformers computes.

    python -m tools.golden.make [--out tests/golden] [NAME ...]

Needs torch and transformers, which nothing else in the project does. Weights are stored as
bfloat16 (their values are rounded before the logits are computed in float32), seeds are fixed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

# BitLinear's functions are wrapped in torch.compile, which would call a C++ compiler.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers.integrations.bitnet import (  # noqa: E402
    pack_weights,
    replace_with_bitnet_linear,
)
from transformers.utils.quantization_config import BitNetQuantConfig  # noqa: E402

from tools.golden.byte_tokenizer import BOS, write_json, write_tokenizer  # noqa: E402
from tools.golden.checkpoints import BASE, GOLDEN, Golden  # noqa: E402
from tools.golden.families.state_spaces import STATE_SPACES  # noqa: E402

_TEXT = "model.language_model."  # how names of text models begin that are parts of others
EVERY = {**GOLDEN, **STATE_SPACES}
# In units of the last of 8 bits; float32 noise is about a tenth of it.
ROUNDING_MARGIN = 1e-4


def main() -> None:
    """Writes the checkpoints named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(EVERY), metavar="NAME")
    default = Path(__file__).resolve().parents[2] / "tests" / "golden"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.names:
        write(EVERY[name], arguments.out / name)
        print(name)


def write(golden: Golden, folder: Path) -> None:
    """Writes one checkpoint with its tokenizer and logits."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, 256, (1, golden.tokens), generator=generator)
    ids[0, 0] = BOS
    model, stored, logits = settle(golden, ids)
    save_file({k: v.contiguous() for k, v in sorted(stored.items())}, folder / "model.safetensors")
    reply = {"reply": replied(model, ids, golden.reply)} if golden.reply else {}
    np.savez(
        folder / "golden.npz",
        ids=ids[0].numpy(),
        logits=logits.numpy(),
        inv_freq=frequencies(model).numpy(),
        **reply,
    )
    write_json(folder / "config.json", public_config(model.config.get_text_config(), golden))
    write_tokenizer(folder, BASE["max_position_embeddings"])


def replied(model: Any, ids: torch.Tensor, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Tokens that transformers goes on with, by its own cache, whether the text ends or not."""
    with torch.no_grad():
        continued = model.generate(
            ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=None
        )
    return np.asarray(continued[0, ids.shape[1] :].numpy())


def frequencies(model: Any) -> torch.Tensor:
    """Radians a position, of the layers that attend to everything; none where nothing turns."""
    text = getattr(model.base_model, "language_model", model.base_model)
    rotary = getattr(text, "rotary_emb", None)
    if rotary is None:
        return torch.zeros(0)
    by_type = hasattr(rotary, "full_attention_inv_freq")
    return rotary.full_attention_inv_freq if by_type else rotary.inv_freq


def settle(golden: Golden, ids: torch.Tensor) -> tuple[Any, dict[str, torch.Tensor], torch.Tensor]:
    """Makes the model of the first seed whose logits float32 noise cannot change by a jump.

    BitNet rounds activations; one that lies on a rounding boundary would come out differently
    wherever sums are taken in another order.
    """
    for seed in range(1, 1000):
        torch.manual_seed(seed)
        model = make_model(golden)
        stored = store(model, golden)
        nearest = watch_rounding(model)
        with torch.no_grad():
            logits = model(ids).logits[0]
        if nearest() > ROUNDING_MARGIN:
            return model, stored, logits
    raise SystemExit("no seed keeps all activations off the rounding boundaries")


def make_model(golden: Golden) -> Any:
    """Makes a model with random weights."""
    settings = {**BASE, **golden.changes}
    config_class = getattr(transformers, f"{golden.family}Config")
    if golden.beside:
        settings = {"text_config": settings, **golden.beside}
    config = config_class(**settings, attn_implementation="eager")
    model = getattr(transformers, golden.class_name)(config).float().eval()
    randomise(model, golden.norm_offset)
    return model


def watch_rounding(model: Any) -> Callable[[], float]:
    """Returns a function that tells how close an activation came to a rounding boundary."""
    distances = [0.5]

    def look(module: Any, inputs: tuple[torch.Tensor]) -> None:
        (value,) = inputs
        scaled = value * (127 / value.abs().max(dim=-1, keepdim=True).values.clamp(min=1e-5))
        distances.append(float(((scaled - scaled.floor()) - 0.5).abs().min()))

    for module in model.modules():
        if type(module).__name__ in ("AutoBitLinear", "BitLinear"):
            module.register_forward_pre_hook(look)
    return lambda: min(distances)


def randomise(model: torch.nn.Module, norm_offset: float) -> None:
    """Fills parameters so that attention is peaked and logits differ; rounds them to bfloat16."""
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape)
        if name.endswith("linear_attn.norm.weight"):
            values = 1 + 0.2 * values
        elif name.endswith("A_log"):
            values -= 2  # so that some heads remember long
        elif name.endswith(
            ("norm.weight", "norm1.weight", "norm2.weight", "router.scale", "per_expert_scale")
        ):
            values = 1 - norm_offset + 0.2 * values
        elif parameter.dim() == 2:
            values = values * (0.4 if "embed_tokens" in name else 1.5 * parameter.shape[1] ** -0.5)
            if "modality_router" in name:  # reads values that are divided by the width
                values *= parameter.shape[1] / 4
        else:
            values = 0.3 * values
        parameter.data.copy_(values.bfloat16().float())
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_((0.2 * torch.randn(buffer.shape)).bfloat16().float())
        elif name.endswith("layer_scalar"):
            buffer.copy_((0.4 + 0.8 * torch.rand(buffer.shape)).bfloat16().float())


def store(model: Any, golden: Golden) -> dict[str, torch.Tensor]:
    """Returns the tensors to save; a BitNet model computes with its ternary layers afterwards."""
    state = {k: v.clone() for k, v in model.state_dict().items()}
    if golden.beside:
        state = {k: v for k, v in state.items() if k.startswith((_TEXT, "lm_head."))}
    if model.config.get_text_config().tie_word_embeddings:
        state.pop("lm_head.weight")
    if golden.quantization:
        state = ternarise(model, state, BitNetQuantConfig(**golden.quantization))
    if not golden.stacked:
        state = {name: value for each in state.items() for name, value in single_experts(*each)}
    for own, released in golden.names.items():
        state = {name.replace(own, released): value for name, value in state.items()}
    for path, (turns, parts) in golden.joined.items():
        join(state, path, turns, parts)
    return {k: v if v.dtype == torch.uint8 else v.bfloat16() for k, v in state.items()}


def join(state: dict[str, torch.Tensor], path: str, turns: int, parts: tuple[str, ...]) -> None:
    """Puts rows of some tensors of every layer into one, some of each in turn."""
    for name in [each for each in state if f".{parts[0]}." in each]:
        own = [state.pop(name.replace(parts[0], part)) for part in parts]
        apart = [value.reshape(turns, -1, *value.shape[1:]) for value in own]
        state[name.replace(parts[0], path)] = torch.cat(apart, 1).flatten(0, 1)


def single_experts(name: str, value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A tensor as models are released: with one of each expert instead of a stack of all."""
    module, _, part = name.rpartition(".experts.")
    if part not in ("gate_up_proj", "up_proj", "down_proj"):
        yield name, value
        return
    names = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
    for expert, rows in enumerate(value):
        for own, weight in zip(names, rows.chunk(len(names)), strict=True):
            yield f"{module}.experts.{expert}.{own}.weight", weight


def ternarise(
    model: Any, state: dict[str, torch.Tensor], config: BitNetQuantConfig
) -> dict[str, torch.Tensor]:
    """Swaps in transformers' BitNet layers; packs their weights unless quantised online."""
    replace_with_bitnet_linear(model, ["lm_head"], config)
    packed = config.linear_class == "bitlinear"
    loaded, saved = dict(state), dict(state)
    projections = [k for k in state if "_proj.weight" in k]
    for name in projections if config.quantization_mode == "offline" else []:
        mean = state[name].abs().mean()
        ternary = (state[name] / mean).round().clamp(-1, 1)
        scale = (1 / mean if packed else mean).bfloat16().float().reshape(1)
        saved[name] = pack_weights(ternary.clone())
        loaded[name] = saved[name] if packed else ternary
        saved[f"{name}_scale"] = loaded[f"{name}_scale"] = scale
    if model.config.tie_word_embeddings:
        loaded["lm_head.weight"] = loaded["model.embed_tokens.weight"]
    # The new layers are on the meta device: they take the tensors themselves.
    model.load_state_dict(loaded, assign=True, strict=True)
    for module in model.modules():
        if getattr(module, "dtype", None) == torch.float32 and hasattr(module, "weight_scale"):
            module.dtype = torch.float32
    model.tie_weights()
    model.eval()
    return saved


def public_config(config: Any, golden: Golden) -> dict[str, Any]:
    """Returns config.json without what depends on the version of transformers."""
    values = config.to_diff_dict()
    for key in ("transformers_version", "_name_or_path", "attn_implementation", "time_step_limit"):
        values.pop(key, None)
    settings = {**BASE, **golden.changes}
    values |= {key: settings[key] for key in BASE}
    values["architectures"] = [golden.class_name]
    if golden.quantization:
        values["quantization_config"] = {"quant_method": "bitnet", **golden.quantization}
    values |= golden.said
    return {key: value for key, value in values.items() if golden.said.get(key, 0) is not None}


if __name__ == "__main__":
    main()
