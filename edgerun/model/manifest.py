"""``manifest.json``: what the exporter recorded about a bundle; see docs/bundle.md."""

from __future__ import annotations

from typing import Any

import msgspec

FORMAT = "edgerun-bundle"
FORMAT_VERSION = 1


class FileEntry(msgspec.Struct, frozen=True):
    """Size and digest of one file of the bundle."""

    sha256: str
    size: int


class ModelConfig(msgspec.Struct, frozen=True):
    """What the runtime must know about the model besides its graph; counts and widths."""

    architecture: str
    context_length: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    num_experts: int = 0
    experts_per_token: int = 0


class Manifest(msgspec.Struct, frozen=True):
    """``manifest.json``, see docs/bundle.md.

    ``pack`` is how ternary weights should lie in memory, one of ``env.PACKS``.
    """

    format: str
    format_version: int
    files: dict[str, FileEntry]
    model: ModelConfig
    recipe: dict[str, Any] = {}
    source: dict[str, Any] = {}
    quality: dict[str, Any] = {}
    exporter: dict[str, Any] = {}
    pack: str = "two_bits"
