"""A model small enough to think through: bytes for tokens, and logits by a rule.

The likeliest next token is a function of the whole sequence of cached ids, so a test notices when
positions, cache lengths or prefixes are wrong. In the manner of nanochat's ``test_engine.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgerun.backends.base import NO_VALUES, Executable, Shape, Values
from edgerun.llm.loading import Model
from edgerun.llm.options import LoadOptions
from edgerun.model.chat.template import ChatTemplate
from edgerun.model.text.tokenizer import Tokenizer
from edgerun.plan.programs import Programs
from edgerun.state import Batch, SequenceStore, same_attention

SPECIALS = ("<|bos|>", "<|im_start|>", "<|im_end|>")
BOS, START, END = 256, 257, 258
THINK = 259
VOCAB = 260
SPEC = same_attention(1, 1, 2, "fp32")
LAYER = SPEC[0].name

CHATML = """\
{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def byte_spelling() -> dict[str, int]:
    """GPT-2's 256 byte characters, in the order of bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    return {chr(byte if byte in printable else next(moved)): byte for byte in range(256)}


def byte_tokenizer_json() -> str:
    added = [*((i, name, True) for i, name in enumerate(SPECIALS, BOS)), (THINK, "<think>", False)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": id_, "content": name, "special": special, **flags}
                for id_, name, special in added
            ],
            "normalizer": None,
            "pre_tokenizer": {**level, "use_regex": False},
            "post_processor": None,
            "decoder": {**level, "use_regex": False},
            "model": {"type": "BPE", "vocab": byte_spelling(), "merges": []},
        }
    )


def byte_tokenizer(**config: Any) -> Tokenizer:
    given = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "add_bos_token": True}
    return Tokenizer.from_json(byte_tokenizer_json(), {**given, **config})


def next_token(ids: Sequence[int]) -> int:
    """The rule: printable ASCII, depending on every id and its position."""
    total = sum((position + 1) * (id_ + 1) for position, id_ in enumerate(ids))
    return 32 + total % 95


class FakeExecutable(Executable):
    """Writes ids into the key cache and computes logits from what it reads back.

    Attributes:
        script: if given, the token at each absolute position, instead of the rule.
        rows: rows of each call, for tests of chunking.
    """

    def __init__(self, script: Mapping[int, int] | None = None) -> None:
        self.script = script or {}
        self.rows: list[int] = []
        self.closed = 0

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        self.rows.append(batch.rows)
        for id_, position, sequence in zip(
            batch.ids, batch.positions, batch.sequences, strict=True
        ):
            value = np.full((1, 1, 2), float(id_), np.float32)
            cache.write_block(LAYER, int(sequence), int(position), (value, value))
        logits = np.zeros((len(batch.logit_rows), VOCAB), np.float32)
        for index, row in enumerate(batch.logit_rows):
            length = int(batch.positions[row]) + 1
            keys, _ = cache.read_block(LAYER, int(batch.sequences[row]), 0, length)
            logits[index, self._next([int(key) for key in keys[:, 0, 0]])] = 10
        return {"logits": logits}

    def close(self) -> None:
        self.closed += 1

    def _next(self, ids: list[int]) -> int:
        return self.script.get(len(ids), next_token(ids))


def programs_of(program: Executable, decode: Executable | None = None) -> Programs:
    """Programs for batches of any size: one for all, or another for single rows."""
    return Programs({Shape.of(1): decode or program, Shape.of(1 << 20): program})


def saying(text: str, prompt_tokens: int, *, end: bool = True) -> FakeExecutable:
    """A model that says ``text`` to a prompt of that many tokens and then ends its reply."""
    ids = [*text.encode(), *([END] if end else [])]
    return FakeExecutable({prompt_tokens + index: id_ for index, id_ in enumerate(ids)})


def fake_model(
    executable: FakeExecutable | None = None,
    *,
    template: str | None = CHATML,
    context: int = 512,
    max_sessions: int = 4,
    **changes: Any,
) -> Model:
    executable = executable or FakeExecutable()
    tokenizer = changes.pop("tokenizer", None) or byte_tokenizer()
    values: dict[str, Any] = {
        "path": Path("fake"),
        "tokenizer": tokenizer,
        "template": ChatTemplate(template, tokenizer.special_token_variables()),
        "programs": programs_of(executable),
        "states": SPEC,
        "context": context,
        "vocab_size": VOCAB,
        "eos_ids": (END,),
        "sampling_defaults": {"temperature": 0.0},
        "chunk_rows": 16,
        "options": LoadOptions(max_sessions=max_sessions),
    }
    return Model(**{**values, **changes})


def spm_tokenizer_json(
    *, prepend: str = "normalizer", merges: Sequence[tuple[str, str]] = (("▁", "a"), ("i", "m"))
) -> str:
    """A SentencePiece-like BPE with byte fallback, as Llama 2 has it.

    ``prepend``: ``"normalizer"`` puts a space before every run of text (Llama 2, legacy),
    ``"first"`` before the first alone (Metaspace), ``"never"`` nowhere (Gemma).
    """
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    pieces += [chr(code) for code in range(33, 127)]
    pieces += [left + right for left, right in merges]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    metaspace = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": prepend,
        "split": False,
    }
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    by_normalizer = [{"type": "Prepend", "prepend": "▁"}, replace]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": index, "content": name, "special": True, **flags}
                for index, name in enumerate(pieces[:3])
            ],
            "normalizer": {"type": "Sequence", "normalizers": by_normalizer}
            if prepend == "normalizer"
            else None,
            "pre_tokenizer": None if prepend == "normalizer" else metaspace,
            "post_processor": None,
            "decoder": {
                "type": "Sequence",
                "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
                + ([] if prepend == "never" else [strip]),
            },
            "model": {
                "type": "BPE",
                "unk_token": "<unk>",
                "fuse_unk": True,
                "byte_fallback": True,
                "vocab": {piece: index for index, piece in enumerate(pieces)},
                "merges": [f"{left} {right}" for left, right in merges],
            },
        }
    )


def unigram_tokenizer_json() -> str:
    """A Unigram model whose pieces include its control tokens, as T5's and XLM-R's do."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("<extra>", 0.0), ("▁", -3.0)]
    pieces += [(chr(code), -4.0) for code in range(33, 127)]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": index, "content": pieces[index][0], "special": True, **flags}
                for index in range(3)
            ],
            "normalizer": None,
            "pre_tokenizer": {**metaspace, "split": True},
            "post_processor": None,
            "decoder": {**metaspace, "split": True},
            "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False},
        }
    )


class Meter:
    """A ``BusyMeter`` that is told whether other programs use the machine."""

    def __init__(self, *, busy: bool) -> None:
        self.busy = busy

    def __call__(self) -> Meter:
        return self

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def describe(self) -> str:
        return "other programs used 1.3 of 2 CPUs meanwhile"
