"""Tokenizers stored in GGUF metadata (``tokenizer.ggml.*``; gguf.md, "GGML" tokenizer)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun.model.text.ends import ends_of_turns
from edgerun_export.tokenizers import byte_level, spm
from edgerun_export.tokenizers.vocabulary import Kind, Vocabulary

_LLAMA3_BEGIN = "<|begin_of_text|>"
# Phi-3's added tokens take spaces and ends of lines behind them along, which files do not say:
# llama.cpp goes by the model's name (``llama-vocab.cpp``), and its converter has written that with
# a space, too.
_PHI_3 = ("phi-3", "phi3", "phi 3")
_PHI_3_OTHERS = ("<unk>", "<s>", "<|endoftext|>")
_ROLES = ("bos_token_id", "eos_token_id", "unknown_token_id")


def from_gguf(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """Convert a GGUF file's tokenizer.

    Args:
        metadata: the file's metadata; string arrays as lists, numeric ones as NumPy arrays.

    Returns:
        File contents by name; see ``Checkpoint.tokenizer_files``.

    Raises:
        CheckpointError: the file has no vocabulary, or its parts contradict each other.
        UnsupportedError: the kind of tokenizer or pre-tokenizer is not supported.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise CheckpointError("the GGUF file has no tokenizer ('tokenizer.ggml.model')")
    make = _MODELS.get(model) if isinstance(model, str) else None
    if make is None:
        raise UnsupportedError(
            f"GGUF tokenizer '{str(model)[:60]}' is not supported; supported: {', '.join(_MODELS)}"
        )
    return make(metadata)


def _sentencepiece(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    vocabulary = _vocabulary(metadata, add_bos=True)
    scores = _numbers(metadata, "scores")
    prefix = _flag(metadata, "add_space_prefix", True)
    return spm.build(vocabulary, scores, prefix=prefix)


def _gemma4(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """Pieces as sentencepiece has them, with merges instead of scores."""
    vocabulary = _vocabulary(metadata, add_bos=True)
    merges = byte_level.merge_pairs(vocabulary, _strings(metadata, "merges"))
    prefix = _flag(metadata, "add_space_prefix", False)
    return spm.build_of_merges(vocabulary, merges, prefix=prefix)


def _gpt2(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    name = str(metadata.get("tokenizer.ggml.pre", ""))
    cut = byte_level.find_cut(name or _unnamed(metadata))
    vocabulary = _vocabulary(metadata, add_bos=cut.add_bos)
    return byte_level.build(vocabulary, _strings(metadata, "merges"), cut)


def _unnamed(metadata: Mapping[str, Any]) -> str:
    """How a file cuts text that does not say it.

    The published files of BitNet b1.58 2B4T do not; the model was trained with Llama 3's tokenizer.
    """
    is_bitnet = str(metadata.get("general.architecture")).startswith("bitnet")
    bos = _token_id(metadata, "bos_token_id")
    tokens = _strings(metadata, "tokens")
    is_llama3 = bos is not None and tokens[bos : bos + 1] == [_LLAMA3_BEGIN]
    return "llama-bpe" if is_bitnet and is_llama3 else "default"


_MODELS: dict[str, Callable[[Mapping[str, Any]], dict[str, bytes]]] = {
    "llama": _sentencepiece,
    "gpt2": _gpt2,
    "gemma4": _gemma4,
}


def _vocabulary(metadata: Mapping[str, Any], *, add_bos: bool) -> Vocabulary:
    tokens = _strings(metadata, "tokens")
    kinds = _kinds(metadata, len(tokens))
    bos, eos = _token_id(metadata, "bos_token_id"), _token_id(metadata, "eos_token_id")
    ends = [_token_id(metadata, key) for key in ("eot_token_id", "eom_token_id")]
    template = metadata.get("tokenizer.chat_template")
    return Vocabulary(
        tokens,
        kinds,
        bos=bos,
        eos=eos,
        unk=_unknown(metadata, kinds),
        pad=_token_id(metadata, "padding_token_id"),
        add_bos=_flag(metadata, "add_bos_token", add_bos) and bos is not None,
        add_eos=_flag(metadata, "add_eos_token", False) and eos is not None,
        stop=_stops(tokens, kinds, ends),
        chat_template=template if isinstance(template, str) else None,
        matching=_matching(metadata, tokens),
    )


def _matching(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[int, dict[str, bool]]:
    """Which added tokens are not found as they stand; see ``Vocabulary``."""
    name = str(metadata.get("general.name", "")).lower()
    if not any(part in name for part in _PHI_3):
        return {}
    return {
        index: {"rstrip": True} for index, token in enumerate(tokens) if token not in _PHI_3_OTHERS
    }


def _stops(tokens: Sequence[str], kinds: Sequence[int], ends: Iterable[int | None]) -> list[int]:
    """Ids that end a reply: those that the file names, and all that do wherever they are."""
    controls = {token: index for index, token in enumerate(tokens) if kinds[index] == Kind.CONTROL}
    named = [end for end in ends if end is not None and end < len(tokens)]
    return [*named, *(controls[name] for name in ends_of_turns(controls))]


def _unknown(metadata: Mapping[str, Any], kinds: Sequence[int]) -> int | None:
    token_id = _token_id(metadata, "unknown_token_id")
    if token_id is not None:
        return token_id
    return kinds.index(Kind.UNKNOWN) if Kind.UNKNOWN in kinds else None


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, list):
        raise CheckpointError(f"metadata 'tokenizer.ggml.{key}' is missing or no list of strings")
    return value


def _numbers(metadata: Mapping[str, Any], key: str) -> list[float]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, np.ndarray):
        raise CheckpointError(f"metadata 'tokenizer.ggml.{key}' is missing or no list of numbers")
    numbers: list[float] = value.tolist()
    return numbers


def _kinds(metadata: Mapping[str, Any], count: int) -> list[int]:
    if "tokenizer.ggml.token_type" not in metadata:
        roles = {_token_id(metadata, key) for key in _ROLES}
        return [int(Kind.CONTROL if index in roles else Kind.NORMAL) for index in range(count)]
    kinds = _numbers(metadata, "token_type")
    if len(kinds) != count or not all(map(math.isfinite, kinds)):
        raise CheckpointError(
            f"the vocabulary has {count} tokens and {len(kinds)} types; expected a type for each"
        )
    return [int(kind) for kind in kinds]


def _token_id(metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    # -1, also as an unsigned number, is how some converters say that there is none.
    if type(value) is not int or value < -1:
        raise CheckpointError(
            f"metadata 'tokenizer.ggml.{key}' is {str(value)[:40]}; expected an id"
        )
    return None if value in (-1, 0xFFFFFFFF) else value


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{key}", default)
    if not isinstance(value, bool):
        raise CheckpointError(
            f"metadata 'tokenizer.ggml.{key}' is {str(value)[:40]}; expected a flag"
        )
    return value
