"""The tokenizer of models that have nothing to say: one token for each byte, and two more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BOS, EOS = 256, 257
VOCAB_SIZE = 258


def write_tokenizer(folder: Path, context_length: int) -> None:
    """Writes ``tokenizer.json`` and ``tokenizer_config.json``."""
    settings = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": context_length,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    write_json(folder / "tokenizer.json", tokenizer_json())
    write_json(folder / "tokenizer_config.json", settings)


def tokenizer_json() -> dict[str, Any]:
    """Returns tokenizer.json of a byte-level tokenizer without merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>")])
    value: dict[str, Any] = json.loads(tokenizer.to_str())
    return value


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes JSON the same way every time."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
