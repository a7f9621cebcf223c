"""The small files of a bundle: configurations for several runtimes, and the manifest."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from edgerun._version import __version__
from edgerun.errors import CheckpointError
from edgerun.files.folder import other_entries
from edgerun_export.architectures import DecoderSpec, text_keys
from edgerun_export.architectures.decoder.biases import bias_keys
from edgerun_export.checkpoint.base import Source
from edgerun_export.checkpoint.files import read_small
from edgerun_export.nesting import check_nesting
from edgerun_export.recipe import PROFILES, Recipe

FORMAT = "edgerun-bundle"
FORMAT_VERSION = 1
MODEL_FILE, MANIFEST_FILE = "model.onnx", "manifest.json"

_MANIFEST_LIMIT_BYTES = 1 << 24
# Every name that an export may give to a file, whatever the checkpoint and the options.
BUNDLE_FILES = frozenset(
    {
        MANIFEST_FILE,
        MODEL_FILE,
        *(profile.data_file for profile in PROFILES.values()),
        *("config.json", "generation_config.json", "genai_config.json"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
        *("openvino_model.xml", "openvino_tokenizer.xml", "openvino_tokenizer.bin"),
        *("openvino_detokenizer.xml", "openvino_detokenizer.bin"),
    }
)

# What generation falls back to where the checkpoint says nothing.
_SAMPLING = {
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
}


def to_json(value: Mapping[str, Any]) -> bytes:
    """Encodes JSON the same way every time."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def parse_object(name: str, data: bytes) -> dict[str, Any]:
    """Decodes a JSON object of a checkpoint.

    Raises:
        CheckpointError: it is not one, or nested too deep.
    """
    try:
        value = json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"{name} is not valid JSON: {error}") from error
    except ValueError as error:  # which Python says of whole numbers of thousands of digits
        raise CheckpointError(f"{name} has a number of too many digits") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{name} must hold a JSON object")
    check_nesting(value, name)
    return value


def public_config(config: Mapping[str, Any], spec: DecoderSpec) -> dict[str, Any]:
    """Returns the keys of config.json as they describe the bundle.

    The one that may name a folder of its author is left out; those about biases and a tied head
    say what the tensors showed. Of a model with parts beside the text they are the text's.
    """
    text = text_keys(config)
    public = {key: _finite(value) for key, value in text.items() if key != "_name_or_path"}
    if "tie_word_embeddings" in public or text is not config:
        public["tie_word_embeddings"] = spec.tied
    return public | bias_keys(public["model_type"], spec.biases)


def _finite(value: Any) -> Any:
    """The same as JSON has it: numbers that it lacks are spelled as transformers 5 spells them."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": json.dumps(value)}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return value


def implied_generation(
    config: Mapping[str, Any], settings: Mapping[str, Any], tokenizer: Mapping[str, Any]
) -> dict[str, Any]:
    """A generation_config.json for a checkpoint without one.

    A text ends where ``config`` says it, and where the tokenizer does: of models that chat, the
    latter is the end of a turn (Qwen3.5).

    Args:
        config: keys of config.json.
        settings: tokenizer_config.json.
        tokenizer: tokenizer.json.
    """
    keys = ("bos_token_id", "eos_token_id", "pad_token_id")
    generation = {key: config[key] for key in keys if config.get(key) is not None}
    end = settings.get("eos_token")
    end = end.get("content") if isinstance(end, dict) else end
    added = tokenizer.get("added_tokens") or ()
    id_ = next((token["id"] for token in added if end and token.get("content") == end), None)
    said = generation.get("eos_token_id")
    said = said if isinstance(said, list) else [said] * (said is not None)
    if id_ is not None and id_ not in said:
        generation["eos_token_id"] = [*said, id_] if said else id_
    return generation


def special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns special_tokens_map.json as far as tokenizer_config.json implies it."""
    keys = ("bos_token", "eos_token", "unk_token", "pad_token", "additional_special_tokens")
    return {key: tokenizer_config[key] for key in keys if tokenizer_config.get(key)}


def special_ids(
    config: Mapping[str, Any], generation: Mapping[str, Any], vocab_size: int
) -> dict[str, Any]:
    """Returns bos, eos (a list) and pad ids; generation_config.json has the last word.

    Ids that are no tokens are left out: some checkpoints say -1 for "none".
    """

    def look_up(key: str) -> list[int]:
        value = generation.get(key)
        value = config.get(key) if value is None else value
        ids = value if isinstance(value, list) else [value]
        return [i for i in ids if type(i) is int and 0 <= i < vocab_size]

    return {
        "bos_token_id": next(iter(look_up("bos_token_id")), None),
        "eos_token_ids": look_up("eos_token_id"),
        "pad_token_id": next(iter(look_up("pad_token_id")), None),
    }


def padding_id(ids: Mapping[str, Any]) -> int:
    """Returns an id to fill up batches with: any will do where the model names none."""
    pad = ids["pad_token_id"]
    return int((ids["eos_token_ids"] or [0])[0] if pad is None else pad)


def model_facts(spec: DecoderSpec, ids: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a runtime needs to know before it reads the graph."""
    count, top_k = spec.experts
    return {
        "architecture": spec.architecture,
        "context_length": spec.context_length,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_layers": spec.num_states,
        "num_heads": _same(map(spec.num_heads_of, range(spec.num_layers))),
        "num_kv_heads": _same(map(spec.num_kv_heads_of, range(spec.num_layers))),
        "head_dim": _same(map(spec.head_dim_of, range(spec.num_layers))),
        "vocab_size": spec.vocab_size,
        **({"num_experts": count, "experts_per_token": top_k} if count else {}),
        **ids,
    }


def _same(sizes: Iterable[int]) -> int:
    """A size that all layers have; 0 where they differ."""
    different = {*sizes}
    return different.pop() if len(different) == 1 else 0


def genai_config(
    spec: DecoderSpec, recipe: Recipe, ids: Mapping[str, Any], generation: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns genai_config.json, by which onnxruntime-genai opens the folder.

    The type is ``llama`` as a rule: to onnxruntime-genai it means a decoder with these inputs. With
    ``lfm2`` there are convolutions in some layers; matrices it finds whatever the type.
    """
    eos_ids = ids["eos_token_ids"]
    options = {key: value for key, value in generation.items() if value is not None}
    search = {key: options.get(key, value) for key, value in _SAMPLING.items()}
    return {
        "model": {
            "type": "lfm2" if any(layer.conv for layer in spec.layers) else "llama",
            "bos_token_id": ids["bos_token_id"] or 0,
            "eos_token_id": eos_ids if len(eos_ids) > 1 else (eos_ids or [0])[0],
            "pad_token_id": padding_id(ids),
            "context_length": spec.context_length,
            "vocab_size": spec.vocab_size,
            "decoder": _genai_decoder(spec, recipe),
        },
        "search": {
            **search,
            "early_stopping": True,
            "length_penalty": 1.0,
            "max_length": spec.context_length,
            "min_length": 0,
            "no_repeat_ngram_size": 0,
            "num_beams": 1,
            "num_return_sequences": 1,
            # The cache grows, except where the fused op writes into a shared one.
            "past_present_share_buffer": recipe.target.shares_cache,
        },
    }


def _genai_decoder(spec: DecoderSpec, recipe: Recipe) -> dict[str, Any]:
    positions = {"position_ids": "position_ids"} if recipe.target.has_positions else {}
    past, present = _genai_states(spec)
    return {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": MODEL_FILE,
        "head_size": spec.head_dim,
        "hidden_size": spec.hidden_size,
        "num_attention_heads": spec.num_heads,
        "num_hidden_layers": spec.num_states,
        "num_key_value_heads": spec.num_kv_heads,
        **_genai_convolutions(spec),
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            **positions,
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
            **past,
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
            **present,
        },
    }


def _genai_states(spec: DecoderSpec) -> tuple[dict[str, str], dict[str, str]]:
    """Names of what layers remember beside keys and values, before a call and after it."""
    has_matrices = any(map(spec.matrices, range(spec.num_layers)))
    kinds = ["conv"] if has_matrices or any(layer.conv for layer in spec.layers) else []
    kinds += ["recurrent"] if has_matrices else []
    past = {f"past_{kind}_names": f"past_key_values.%d.{kind}" for kind in kinds}
    return past, {f"present_{kind}_names": f"present.%d.{kind}" for kind in kinds}


def _genai_convolutions(spec: DecoderSpec) -> dict[str, Any]:
    """Which layers have a convolution in place of attention, and how much it remembers."""
    taps = {layer.conv.taps for layer in spec.layers if layer.conv}
    if not taps:
        return {}
    types = ["conv" if layer.conv else "full_attention" for layer in spec.layers]
    return {"layer_types": types, "conv_cache_size": max(taps) - 1}


def listed_files(folder: Path) -> set[str] | None:
    """Names of the files that an export made, by the manifest; ``None`` if that is no bundle's."""
    try:
        data = read_small(folder / MANIFEST_FILE, _MANIFEST_LIMIT_BYTES, inside=True)
        content = parse_object(MANIFEST_FILE, data)
    except CheckpointError:
        return None
    files = content.get("files", {})
    if content.get("format") != FORMAT or not isinstance(files, dict):
        return None
    return {*files, MANIFEST_FILE}


def foreign_entries(folder: Path) -> list[str]:
    """Names of what lies in a bundle's folder and is not a file that an export made."""
    return other_entries(folder, listed_files(folder) or set())


def file_entry(path: Path) -> dict[str, Any]:
    """Returns size and digest of a small file."""
    data = path.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def manifest(
    *,
    exporter: Mapping[str, Any],
    spec: DecoderSpec,
    recipe: Recipe,
    pack: str,
    ids: Mapping[str, Any],
    source: Source,
    quality: Mapping[str, Any],
    files: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns manifest.json: what the bundle is, where it came from, and digests of its files."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "exporter": {"name": "edgerun-export", "version": __version__, **exporter},
        "model": model_facts(spec, ids),
        "recipe": {**recipe.as_dict(), "natively_ternary": spec.ternary is not None},
        "source": {
            "kind": source.kind,
            # Names of files need not be text.
            "location": source.location.encode("utf-8", "replace").decode(),
            "revision": source.revision,
            "licence": source.licence,
            "url": source.url,
        },
        "quality": dict(quality),
        "pack": pack,
        "files": dict(sorted(files.items())),
    }
