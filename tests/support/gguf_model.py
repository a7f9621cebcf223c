"""Writes whole models as GGUF files, with the gguf package, and compares what they compute."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from edgerun_export.architectures import DecoderSpec, Experts, describe
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.source.model import interpret
from edgerun_export.verify.compare import relative_error
from edgerun_export.verify.numpy_model import forward
from tests.support.bundles import GOLDEN, config_of

IDS = np.array([1, *(7 * place % 250 for place in range(20))])

# Whose converters put rows of queries and keys in pairs.
INTERLEAVED = (
    "llama",
    "internlm2",
    "minicpm",
    "arcee",
    "olmo",
    "smollm3",
    "granite",
    "granitemoe",
    "granitehybrid",
    "mistral3",
)
# Parameters without a suffix, and what they have in GGUF.
BARE = {
    ".layer_scalar": "weight",
    ".sinks": "weight",
    ".correct_output_scale": "weight",
    ".expert_bias": "bias",
    ".e_score_correction_bias": "bias",
}
_STREAM = re.compile(r"(model\.altup_\w+)\.(\d+)\.weight")
Extra = Callable[[gguf.GGUFWriter], None]


def source_of(name: str, **changes: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Configuration and tensors of a golden checkpoint."""
    with open_checkpoint(str(GOLDEN / name)) as checkpoint:
        tensors = {each: checkpoint.read(each) for each in checkpoint.tensors()}
    return config_of(name, **changes), tensors


def stored_of(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The same, with the tensors that the file itself has."""
    config, _ = source_of(name)
    with open_checkpoint(str(GOLDEN / name)) as checkpoint:
        stored = checkpoint._checkpoint
        return config, {each: stored.read(each) for each in stored.tensors()}


def difference(path: Path, name: str, config: dict[str, Any]) -> float:
    """How far the logits of a GGUF file are from those of a golden checkpoint, of their range.

    Args:
        path: of the file.
        name: of the checkpoint.
        config: what its configuration is changed to say.
    """
    own = config_of(name)
    config = {**own, **config, "model_type": own["model_type"]}
    with open_checkpoint(str(GOLDEN / name)) as checkpoint:
        checkpoint.config = config
        expected = forward(describe(config), interpret(checkpoint)[0], IDS)
    with open_checkpoint(str(path)) as checkpoint:
        source, _ = interpret(checkpoint)
        assert source.spec.context_length == describe(config).context_length
        return float(relative_error(forward(source.spec, source, IDS), expected))


def write_gguf(
    path: Path,
    architecture: str,
    config: dict[str, Any],
    tensors: dict[str, np.ndarray],
    quantised: str | Mapping[str, str] | None = None,
    extra: Extra = lambda writer: None,
) -> Path:
    """Writes a GGUF file as llama.cpp's converter does.

    Args:
        path: the file to write.
        architecture: llama.cpp's name of it.
        config: Hugging Face configuration.
        tensors: float32, in Hugging Face names and layout.
        quantised: type of the projections, or of those whose name has some part; float32
            otherwise.
        extra: writes more metadata.
    """
    spec = describe(config)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.get("max_position_embeddings", spec.context_length))
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_layers + config.get("predicting", 0))
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(spec.num_heads)
    heads = [spec.num_kv_heads * spec.attends(layer) for layer in range(spec.num_layers)]
    is_same = all(heads) or "linear_num_key_heads" in config
    writer.add_head_count_kv(spec.num_kv_heads if is_same else heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    add_epsilon = writer.add_layer_norm_eps if spec.centres else writer.add_layer_norm_rms_eps
    add_epsilon(config.get("rms_norm_eps", spec.norm_eps))
    write_positions(writer, config)
    write_vocabulary(writer)
    write_experts(writer, spec)
    extra(writer)
    maps = name_maps(architecture, spec.num_layers)
    for key, value in stacked(tensors).items():
        if architecture in INTERLEAVED and (".q_proj" in key or ".k_proj" in key):
            heads = value.shape[0] // spec.head_dim
            shape = (heads, 2, spec.head_dim // 2, *value.shape[1:])
            value = value.reshape(shape).swapaxes(1, 2).reshape(value.shape)
        bare = next((BARE[name] for name in BARE if key.endswith(name)), None)
        stem, suffix = (key, bare) if bare else key.rsplit(".", 1)
        stem = stem.replace("e_score_correction_bias", "e_score_correction")
        gguf_stem = next(name for names in maps if (name := names.get_name(stem)))
        name = f"{gguf_stem}.{suffix}"
        kinds = {"_proj.weight": quantised} if isinstance(quantised, str) else quantised or {}
        chosen = [kind for part, kind in kinds.items() if part in key]
        if chosen:
            kind = gguf.GGMLQuantizationType[chosen[-1]]
            writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def name_maps(architecture: str, layers: int) -> list[gguf.TensorNameMap]:
    """What the gguf package calls tensors, by the architecture or others that have them."""
    own = [arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture]
    others = (gguf.MODEL_ARCH.QWEN3, gguf.MODEL_ARCH.QWEN3MOE, gguf.MODEL_ARCH.GPT_OSS)
    return [gguf.get_tensor_name_map(arch, layers) for arch in (*own, *others)]


def write_metadata(writer: gguf.GGUFWriter, name: str, metadata: Mapping[str, Any]) -> None:
    """Writes keys of an architecture, with dots for double underscores; none that is None."""
    for key, value in metadata.items():
        if value is not None:
            kind = type_of(value)
            writer.add_key_value(f"{name}.{key.replace('__', '.')}", value, kind)


def type_of(value: Any) -> gguf.GGUFValueType:
    """The type of a key, as converters write it and llama.cpp asks for: counts have no sign."""
    kind = gguf.GGUFValueType.get_type(value)
    has_sign = kind != gguf.GGUFValueType.INT32 or value < 0
    return kind if has_sign else gguf.GGUFValueType.UINT32


def write_vocabulary(writer: gguf.GGUFWriter) -> None:
    """Writes a vocabulary of single bytes."""
    writer.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    tokens += ["a", "b", "c", "d", "e"]
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * 5)


def write_positions(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Writes what is said of rotary embedding and, in gpt-oss, of windows."""
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    if config["model_type"] == "gpt_oss":
        writer.add_sliding_window(config["sliding_window"])
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])


def write_experts(writer: gguf.GGUFWriter, spec: DecoderSpec) -> None:
    """Writes how many experts there are, if any."""
    for part in dict.fromkeys(layer.feed_forward for layer in spec.layers):
        if isinstance(part, Experts):
            writer.add_expert_count(part.count)
            writer.add_expert_used_count(part.top_k)
            writer.add_expert_feed_forward_length(part.width)
            if part.shared is not None:
                writer.add_expert_shared_feed_forward_length(part.shared.width)


def stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors as llama.cpp's converter has them: one of all experts of a layer, or streams."""
    names = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    result: dict[str, Any] = {}
    for key, value in tensors.items():
        at, expert, rest = key.replace("block_sparse_moe", "mlp").partition(".experts.")
        if match := _STREAM.fullmatch(key):
            result.setdefault(f"{match[1]}.weight", {})[int(match[2])] = value
            continue
        if not expert:
            result[at] = value[0] if at.endswith("shared_expert_gate.weight") else value
            continue
        number, name, suffix = rest.split(".")
        whole = result.setdefault(f"{at}.experts.{names.get(name, name)}.{suffix}", {})
        whole[int(number)] = value
    return {
        key: np.stack([value[e] for e in sorted(value)]) if isinstance(value, dict) else value
        for key, value in result.items()
    }
