"""Reader of llama2.c files: version 0 (no magic) and version 1 (float32 with a header).

Formats: https://github.com/karpathy/llama2.c, ``export.py`` (``legacy_export``,
``version1_export``) and ``run.c`` (``memory_map_weights``). All weights are float32; rotary pairs
are interleaved.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint.base import Source, TensorInfo
from edgerun_export.checkpoint.codecs import F32_CODEC
from edgerun_export.checkpoint.files import MIB, ByteFile, read_small
from edgerun_export.checkpoint.registry import head
from edgerun_export.checkpoint.stored import Stored, StoredCheckpoint
from edgerun_export.tokenizers import from_llama2c

_MAGIC = 0x616B3432
_V0_HEADER_BYTES, _V1_HEADER_BYTES = 28, 256
_TOKENIZER_LIMIT_BYTES = 16 * MIB
_MAX_SIZE = 1 << 24
_MAX_LAYERS = 1024
_TOKENIZER_NAMES = ("tok{vocab}.bin", "tokenizer.bin")

# One row a tensor of a layer: part of its name, and its shape in terms of the sizes below.
_Row = tuple[str, tuple[str, ...]]
_NORM_1: _Row = ("input_layernorm", ("dim",))
_NORM_2: _Row = ("post_attention_layernorm", ("dim",))
_ATTENTION: tuple[_Row, ...] = (
    ("self_attn.q_proj", ("dim", "dim")),
    ("self_attn.k_proj", ("kv_dim", "dim")),
    ("self_attn.v_proj", ("kv_dim", "dim")),
    ("self_attn.o_proj", ("dim", "dim")),
)
_FEED_FORWARD: tuple[_Row, ...] = (
    ("mlp.gate_proj", ("hidden", "dim")),
    ("mlp.down_proj", ("dim", "hidden")),
    ("mlp.up_proj", ("hidden", "dim")),
)
_EMBEDDING: _Row = ("model.embed_tokens.weight", ("vocab", "dim"))
_FINAL_NORM: _Row = ("model.norm.weight", ("dim",))
_HEAD: _Row = ("lm_head.weight", ("vocab", "dim"))
_PAIRED = ("self_attn.q_proj", "self_attn.k_proj")


@dataclass(frozen=True, slots=True)
class _Header:
    """Sizes as in the file, plus what follows from them."""

    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    tied: bool
    version: int

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    def size(self, name: str) -> int:
        return self.kv_heads * self.head_dim if name == "kv_dim" else int(getattr(self, name))


def claims(path: Path) -> bool:
    """Tell whether a file has version 1's magic, or sizes that make sense for version 0."""
    start = head(path, _V0_HEADER_BYTES)
    if start[:4] == struct.pack("<I", _MAGIC):
        return True
    return len(start) == _V0_HEADER_BYTES and _plausible(_version0(start))


def open_path(path: Path, tokenizer: Path | None = None) -> StoredCheckpoint:
    """Open a llama2.c file; its tokenizer is found beside it unless given.

    Raises:
        CheckpointError: the file is truncated or damaged.
        UnsupportedError: it is an int8 file (version 2) or newer.
    """
    file = ByteFile(path)
    try:
        header = _read_header(file)
        stored = dict(_place(header, file))
    except Exception:
        file.close()
        raise
    source = Source("llama2c", path.name)
    return StoredCheckpoint(
        _config(header),
        source,
        stored,
        lambda: from_llama2c(_tokenizer(path, tokenizer, header.vocab), header.vocab),
    )


def _version0(start: bytes) -> _Header:
    dim, hidden, layers, heads, kv_heads, vocab, context = struct.unpack("<7i", start)
    # A negative vocabulary means that the classifier has weights of its own.
    return _Header(
        dim, hidden, layers, heads, kv_heads, abs(vocab), context, tied=vocab > 0, version=0
    )


def _plausible(header: _Header) -> bool:
    names = ("dim", "hidden", "layers", "heads", "kv_heads", "vocab", "context")
    return (
        all(0 < header.size(name) <= _MAX_SIZE for name in names)
        and header.layers <= _MAX_LAYERS
        and header.dim % header.heads == 0
        and header.head_dim % 2 == 0
        and header.heads % header.kv_heads == 0
    )


def _read_header(file: ByteFile) -> _Header:
    start = file.read(0, _V0_HEADER_BYTES).tobytes()
    if start[:4] != struct.pack("<I", _MAGIC):
        header = _version0(start)
    else:
        (version,) = struct.unpack("<i", start[4:8])
        if version != 1:
            raise UnsupportedError(
                f"'{file.name}' is a llama2.c file of version {version}; supported: 0 and 1 "
                "(float32), so export it again with --version 1"
            )
        sizes, tied = start[8:] + file.read(28, 8).tobytes(), bool(file.read(36, 1)[0])
        dim, hidden, layers, heads, kv_heads, vocab, context = struct.unpack("<7i", sizes)
        header = _Header(dim, hidden, layers, heads, kv_heads, vocab, context, tied, version=1)
    if not _plausible(header):
        raise CheckpointError(f"'{file.name}' has impossible sizes in its header: {header}")
    return header


def _config(header: _Header) -> dict[str, Any]:
    """Configuration; what the file does not say is fixed in llama2.c's ``run.c``."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": header.dim,
        "intermediate_size": header.hidden,
        "num_hidden_layers": header.layers,
        "num_attention_heads": header.heads,
        "num_key_value_heads": header.kv_heads,
        "head_dim": header.head_dim,
        "vocab_size": header.vocab,
        "max_position_embeddings": header.context,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": header.tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _order(header: _Header) -> Iterator[_Row | None]:
    """Tensors in file order; ``None`` stands for version 0's stored rotary tables."""

    def layers(*rows: _Row) -> Iterator[_Row]:
        for name, shape in rows:
            for layer in range(header.layers):
                yield f"model.layers.{layer}.{name}.weight", shape

    if header.version == 0:
        yield _EMBEDDING
        yield from layers(_NORM_1, *_ATTENTION, _NORM_2, *_FEED_FORWARD)
        yield _FINAL_NORM
        yield None
    else:
        yield from layers(_NORM_1, _NORM_2)
        yield _FINAL_NORM
        yield _EMBEDDING
        yield from layers(*_ATTENTION, *_FEED_FORWARD)
    if not header.tied:
        yield _HEAD


def _place(header: _Header, file: ByteFile) -> Iterator[tuple[str, Stored]]:
    offset = _V1_HEADER_BYTES if header.version else _V0_HEADER_BYTES
    expected = offset + 4 * _weights(header)
    # Before the loop below: the number of layers is the file's word only.
    if file.size_bytes != expected:
        raise CheckpointError(
            f"'{file.name}' has {file.size_bytes} bytes, but its header describes {expected}; it "
            "is truncated, damaged or not a llama2.c file"
        )
    for row in _order(header):
        if row is None:
            offset += 4 * header.context * header.head_dim
            continue
        name, names = row
        shape = tuple(header.size(size) for size in names)
        paired = header.head_dim if any(part in name for part in _PAIRED) else None
        yield name, Stored(TensorInfo(name, shape, "F32"), file, offset, F32_CODEC, paired)
        offset += 4 * math.prod(shape)


def _weights(header: _Header) -> int:
    """Number of float32 values after the header."""

    def count(*rows: _Row) -> int:
        return sum(math.prod(header.size(size) for size in shape) for _, shape in rows)

    tables = header.context * header.head_dim if header.version == 0 else 0
    layer = count(_NORM_1, *_ATTENTION, _NORM_2, *_FEED_FORWARD)
    head = 0 if header.tied else count(_HEAD)
    return count(_EMBEDDING, _FINAL_NORM) + header.layers * layer + tables + head


def _tokenizer(path: Path, explicit: Path | None, vocab: int) -> bytes:
    if explicit is not None:
        return read_small(explicit, _TOKENIZER_LIMIT_BYTES)
    names = [name.format(vocab=vocab) for name in _TOKENIZER_NAMES]
    for name in names:
        if (path.parent / name).exists():
            return read_small(path.parent / name, _TOKENIZER_LIMIT_BYTES, inside=True)
    raise CheckpointError(
        f"no tokenizer beside '{path.name}': expected {' or '.join(names)} there, or --tokenizer"
    )
