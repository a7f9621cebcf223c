"""Reader of GGUF files (llama.cpp): names, rotary order and metadata back to Hugging Face's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint.base import (
    F32,
    MAX_LICENCE,
    MAX_LOCATION,
    Checkpoint,
    Source,
    TensorInfo,
    printable_line,
)
from edgerun_export.checkpoint.files import ByteFile
from edgerun_export.checkpoint.gguf_config import architecture, make_config
from edgerun_export.checkpoint.gguf_header import MAGIC, GgufHeader, GgufTensor, read_header
from edgerun_export.checkpoint.gguf_parts import joined, other_parts
from edgerun_export.checkpoint.kinds.base import (
    CONVOLUTIONS,
    ONE_ROW,
    VECTORS,
    Architecture,
    Experts,
)
from edgerun_export.checkpoint.kinds.long_rope import LONG_FACTORS, SHORT_FACTORS
from edgerun_export.checkpoint.registry import head
from edgerun_export.checkpoint.stored import (
    MAX_TENSORS,
    Stored,
    StoredCheckpoint,
    encoded_bytes,
)
from edgerun_export.checkpoint.views.curves import with_curves
from edgerun_export.checkpoint.views.linear import with_linear_heads
from edgerun_export.checkpoint.views.state_spaces import with_state_spaces
from edgerun_export.tokenizers import from_gguf

# No leading zeros: two spellings of a layer would be one tensor.
_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,5})\.((?:shortconv\.)?\w+)\.(weight|bias)")
_EXPERTS = re.compile(
    r"blk\.(0|[1-9]\d{0,5})\.ffn_(gate_inp|(?:gate|up|gate_up|down)_exps)\.(weight|bias)"
)
_ROUTER_SCALE = re.compile(r"blk\.(0|[1-9]\d{0,5})\.ffn_gate_inp\.scale")
_ANY_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(.+)")
_URL_KEYS = ("general.url", "general.repo_url", "general.source.url", "general.source.repo_url")
_URL = re.compile(r"https?://[!-~]+")
_ROPE_FACTORS = ("rope_freqs.weight", LONG_FACTORS, SHORT_FACTORS)

_EMBEDDING = "token_embd.weight"
_WHOLE_MODEL = {
    "output.weight": "lm_head.weight",
    "output.bias": "lm_head.bias",
    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
}
# Matrices of streams, which are stacks of all.
_STREAMS = {
    "altup_proj.weight": "model.altup_projections",
    "altup_unembd_proj.weight": "model.altup_unembed_projections",
}
_FINAL_NORM = ("output_norm", "token_embd_norm")  # as LFM2's converter calls it
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_sub_norm": "self_attn.attn_sub_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_sub_norm": "mlp.ffn_sub_norm",
}
_ROTATED = ("attn_q", "attn_k")
# Parameters, which have no suffix to Hugging Face, and theirs in GGUF.
_BARE = {"attn_sinks": ".weight", "exp_probs_b": ".bias", "layer_output_scale": ".weight"}
_BARE |= {"altup_correct_scale": ".weight", "ssm_a": ".weight", "ssm_dt": ".bias"}
_BARE |= {"ssm_d": ".weight"}
# Have no suffix in GGUF either; the last of Falcon H1 alone, by a slip of the gguf package.
_NAKED = (".ssm_a", ".ssm_d", ".ffn_norm")


def claims(path: Path) -> bool:
    """Tell whether a file begins with GGUF's magic, or is called so."""
    return head(path, 4) == MAGIC or (path.suffix == ".gguf" and path.is_file())


def open_path(path: Path, tokenizer: Path | None = None) -> Checkpoint:
    """Open a GGUF file.

    Raises:
        CheckpointError: it is broken, or holds only a vocabulary.
        UnsupportedError: its architecture, a tensor type or a layout is not supported.
    """
    if tokenizer is not None:
        raise UnsupportedError("--tokenizer is for llama2.c files; a GGUF file has its own")
    files = [ByteFile(path)]
    try:
        headers = [read_header(files[0])]
        for other in other_parts(path, headers[0].metadata):
            files.append(ByteFile(other, inside=True))
            headers.append(read_header(files[-1]))
        header = joined(headers, [file.name for file in files])
        stored, config = _interpret(header, path.name)
    except Exception:
        _close(files)
        raise
    _close({*files} - {each.file for each in stored.values()})
    source = _source(path.name, header.metadata)
    checkpoint = StoredCheckpoint(config, source, stored, lambda: from_gguf(header.metadata))
    return with_curves(with_state_spaces(with_linear_heads(checkpoint)))


def _close(files: Iterable[ByteFile]) -> None:
    for file in files:
        file.close()


def _source(name: str, metadata: Mapping[str, Any]) -> Source:
    """Where a file of this name says that it comes from: what is no printable line says nothing."""
    urls = (printable_line(metadata.get(key), MAX_LOCATION) for key in _URL_KEYS)
    url = next((url for url in urls if url and _URL.fullmatch(url)), None)
    licence = printable_line(metadata.get("general.license"), MAX_LICENCE)
    return Source("gguf", name, licence=licence, url=url)


def _interpret(header: GgufHeader, file_name: str) -> tuple[dict[str, Stored], dict[str, Any]]:
    metadata = header.metadata
    tensors = {name: _with_scale(tensor) for name, tensor in header.tensors.items()}
    kind = architecture(metadata)
    embedding = tensors.get(_EMBEDDING)
    if embedding is None:
        raise CheckpointError(f"'{file_name}' has no '{_EMBEDDING}': it holds no model")
    factors = [tensors.pop(name) for name in _ROPE_FACTORS if name in tensors]
    config = make_config(
        metadata,
        vocab_size=embedding.shape[0],
        tied="output.weight" not in tensors,
        rope_factors={tensor.name: _read_factors(tensor) for tensor in factors},
    )
    config |= {key: f"blk.0.{name}" in tensors for key, name in kind.told.items()}
    config |= {k: tensors[name].shape[0] for k, name in kind.rows.items() if name in tensors}
    config |= {key: _lacks(tensors, *pair) for key, pair in kind.lacking.items()}
    head_dim = config["head_dim"] if kind.pairs_interleaved else None
    layers = config["num_hidden_layers"]
    predicting = range(layers, layers + config.get("num_nextn_predict_layers", 0))
    stored: dict[str, Stored] = {}
    scaled = _take_factors(tensors) if kind.experts and kind.experts.are_scaled else {}
    for tensor in tensors.values():
        unread = _of_unread_layer(tensor, predicting)
        own = scaled.get(tensor.name)
        for tensor_data in unread or _stored(tensor, kind, head_dim, own):
            name = kind.rename(tensor_data.info.name)
            tensor_data = replace(tensor_data, info=replace(tensor_data.info, name=name))
            if name in stored:
                raise CheckpointError(f"'{file_name}' has two tensors that are '{name}'")
            stored[name] = tensor_data
            if len(stored) > MAX_TENSORS:
                raise CheckpointError(f"'{file_name}' has more than {MAX_TENSORS} tensors")
    return stored, config


def _lacks(tensors: Mapping[str, Any], first: str, second: str) -> bool:
    """Whether some layer has the first of two tensors without the second."""
    stems = [name.removesuffix(first) for name in tensors if name.endswith(f".{first}")]
    return any(f"{stem}{second}" not in tensors for stem in stems)


def _of_unread_layer(tensor: GgufTensor, layers: range) -> list[Stored]:
    """A tensor of a layer for multi-token prediction, which nobody reads; none if of another."""
    match = _ANY_BLOCK.fullmatch(tensor.name)
    if match is None or int(match[1]) not in layers:
        return []
    name = f"model.layers.{match[1]}.{match[2]}"
    info = TensorInfo(name, tensor.shape, tensor.codec.name)
    return [Stored(info, tensor.file, tensor.offset, tensor.codec)]


def _with_scale(tensor: GgufTensor) -> GgufTensor:
    """A tensor whose codec knows the scale that follows the tensor's blocks, if one does."""
    codec = tensor.codec
    if codec.with_scale is None:
        return tensor
    end = tensor.offset + encoded_bytes(tensor.shape, codec)
    scale = np.float32(tensor.file.read(end - codec.tail_bytes, 4).view("<f4")[0])
    if not 0 < scale < np.inf:
        raise CheckpointError(
            f"tensor '{tensor.name}' of type {codec.name} has the scale {scale}; expected a finite "
            "one above 0, so it is damaged or laid out in a way that is not known"
        )
    return replace(tensor, codec=codec.with_scale(scale))


def _take_factors(tensors: dict[str, GgufTensor]) -> dict[str, F32]:
    """Takes the factors of experts: by the tensor of their down projections, one for each.

    Raises:
        CheckpointError: they are none, or others than experts.
    """
    factors = {}
    names = [name for name in tensors if name.endswith(".ffn_down_exps.weight")]
    for name in names:
        own = tensors.pop(f"{name.removesuffix('weight')}scale", None)
        if own is None or own.shape != tensors[name].shape[:1]:
            beside = "none" if own is None else f"of shape {list(own.shape)}"
            raise CheckpointError(
                f"tensor '{name}' has {tensors[name].shape[0]} experts, and their factors are "
                f"{beside}; expected one for each"
            )
        factors[name] = _read_factors(own)
    return factors


def _stored(
    tensor: GgufTensor,
    kind: Architecture,
    head_dim: int | None,
    factors: F32 | None = None,
) -> Iterator[Stored]:
    """What a tensor is to Hugging Face: that of a layer's experts is one of each.

    ``factors`` are those of its experts.
    """
    experts = kind.experts
    match = _EXPERTS.fullmatch(tensor.name) if experts is not None else None
    if experts is not None and match is not None:
        at = f"model.layers.{int(match[1])}.{experts.module}".removesuffix(".")
        if match[2] == "gate_inp":
            name = f"{at}.{experts.router}.{match[3]}"
            info = TensorInfo(name, tensor.shape, tensor.codec.name)
            yield Stored(info, tensor.file, tensor.offset, tensor.codec)
            return
        names = _projections_in(match[2], experts)
        axes = 3 if match[3] == "weight" else 2
        if len(tensor.shape) != axes:
            raise CheckpointError(
                f"tensor '{tensor.name}' has shape {list(tensor.shape)}; expected {axes} axes, the "
                "first of experts"
            )
        if tensor.shape[1] % len(names):
            raise CheckpointError(
                f"tensor '{tensor.name}' has {tensor.shape[1]} rows for each expert, which "
                f"{' and '.join(names)} cannot share"
            )
        shape = tensor.shape[1] // len(names), *tensor.shape[2:]
        apart = encoded_bytes(shape, tensor.codec)
        for part in range(tensor.shape[0] * len(names)):
            expert, place = divmod(part, len(names))
            full = f"{at}.experts.{expert}.{names[place]}.{match[3]}"
            info = TensorInfo(full, shape, tensor.codec.name)
            factor = 1.0 if factors is None else float(factors[expert])
            offset = tensor.offset + part * apart
            yield Stored(info, tensor.file, offset, tensor.codec, factor=factor)
        return
    scale = _ROUTER_SCALE.fullmatch(tensor.name)
    if scale is not None and experts is not None and experts.are_scaled:
        info = TensorInfo(
            f"model.layers.{int(scale[1])}.router.scale", tensor.shape, tensor.codec.name
        )
        yield Stored(info, tensor.file, tensor.offset, tensor.codec)
        return
    if tensor.name in _STREAMS:
        yield from _stored_streams(tensor)
        return
    yield _stored_alone(tensor, kind, head_dim)


def _stored_streams(tensor: GgufTensor) -> Iterator[Stored]:
    if len(tensor.shape) != 3:
        raise CheckpointError(
            f"tensor '{tensor.name}' has shape {list(tensor.shape)}; expected 3 axes, the first of "
            "residual streams"
        )
    shape = tensor.shape[1:]
    apart = encoded_bytes(shape, tensor.codec)
    for number in range(tensor.shape[0]):
        name = f"{_STREAMS[tensor.name]}.{number}.weight"
        info = TensorInfo(name, shape, tensor.codec.name)
        yield Stored(info, tensor.file, tensor.offset + number * apart, tensor.codec)


def _projections_in(stack: str, experts: Experts) -> tuple[str, ...]:
    """What the projections of an expert are called that a stack has, one after the other."""
    gate, up, down = experts.names
    stacks = {"gate_exps": (gate,), "up_exps": (up,), "gate_up_exps": (gate, up)}
    return stacks.get(stack, (down,))


def _stored_alone(tensor: GgufTensor, kind: Architecture, head_dim: int | None) -> Stored:
    name, rotated = _rename(tensor.name, kind)
    paired = head_dim if rotated else None
    if paired and tensor.shape[0] % paired:
        raise CheckpointError(
            f"tensor '{tensor.name}' has {tensor.shape[0]} rows; expected whole heads of {paired}"
        )
    shape = tensor.shape
    if name.endswith(ONE_ROW) and len(shape) == 1:
        shape = (1, *shape)
    if name.endswith(CONVOLUTIONS) and len(shape) == 2:
        shape = (shape[0], 1, shape[1])
    if name.endswith(VECTORS) and len(shape) == 2:
        shape = (shape[0] * shape[1],)
    info = TensorInfo(name, shape, tensor.codec.name)
    is_plain = bool(kind.plain_norm) and name.endswith(f".{kind.plain_norm}.weight")
    added = kind.norm_offset if name.endswith("norm.weight") and not is_plain else 0.0
    return Stored(info, tensor.file, tensor.offset, tensor.codec, paired, added)


def _rename(name: str, kind: Architecture) -> tuple[str, bool]:
    """Hugging Face name, and whether the rows go through the rotary embedding."""
    if name == _EMBEDDING:
        return f"{kind.embedding}.weight", False
    if name in _WHOLE_MODEL:
        return _WHOLE_MODEL[name], False
    stem, _, suffix = name.partition(".")
    if stem in _FINAL_NORM and suffix in ("weight", "bias"):
        return f"{kind.final_norm}.{suffix}", False
    full = f"{name}.weight" if name.endswith(_NAKED) else name
    match, layer = _BLOCK.fullmatch(full), {**_LAYER, **kind.tensors}
    if match is None or match[2] not in layer:
        raise UnsupportedError(
            f"tensor '{name[:100]}' has no known place in this architecture; leaving it out would "
            "change the model"
        )
    renamed = f"model.layers.{int(match[1])}.{layer[match[2]]}.{match[3]}"
    renamed = renamed.removesuffix(_BARE.get(match[2], ""))
    return renamed, match[2] in _ROTATED


def _read_factors(tensor: GgufTensor) -> F32:
    info = TensorInfo(tensor.name, tensor.shape, tensor.codec.name)
    stored: Mapping[str, Stored] = {
        info.name: Stored(info, tensor.file, tensor.offset, tensor.codec)
    }
    checkpoint = StoredCheckpoint({}, Source("gguf", tensor.file.name), stored, dict)
    factors: F32 = checkpoint.read(info.name)
    return factors
