"""A vocabulary with its special tokens, and the files that every kind of tokenizer needs.

The layout of ``tokenizer.json`` is that of the ``tokenizers`` crate (``Tokenizer::to_string``).
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgerun.errors import CheckpointError

Json = dict[str, Any]


class Kind(enum.IntEnum):
    """Token types; sentencepiece and GGUF use the same numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens in the order of their ids.

    Attributes:
        tokens: texts, all different.
        kinds: the type of each.
        bos: id of the begin token; likewise ``eos``, ``unk`` and ``pad``.
        add_bos: whether encoding prepends ``bos``; likewise ``add_eos``.
        stop: further ids that end a generation.
        chat_template: Jinja source.
        matching: by id, how a token is found in text where it is not as it stands: ``lstrip`` and
            ``rstrip`` take spaces and ends of lines beside it along, ``single_word`` leaves it
            alone within words.

    Raises:
        CheckpointError: the lists differ in length, a text is there twice, or an id is outside.
    """

    tokens: Sequence[str]
    kinds: Sequence[int]
    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    pad: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    stop: Sequence[int] = field(default=())
    chat_template: str | None = None
    matching: Mapping[int, Mapping[str, bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.kinds):
            raise CheckpointError(
                f"the vocabulary has {len(self.tokens)} tokens and {len(self.kinds)} types; "
                "expected as many of each, and at least one"
            )
        for name in ("bos", "eos", "unk", "pad"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < len(self.tokens):
                raise CheckpointError(
                    f"the {name} token's id is {value}; the vocabulary has {len(self.tokens)}"
                )
        if len(set(self.tokens)) != len(self.tokens):
            raise CheckpointError(
                f"the vocabulary holds '{_first_repeated(self.tokens)[:80]}' twice"
            )

    def text(self, token_id: int | None) -> str | None:
        """The text of an id, or ``None`` for none."""
        return None if token_id is None else self.tokens[token_id]

    def ids(self) -> dict[str, int]:
        """Map of texts to ids."""
        return {token: index for index, token in enumerate(self.tokens)}

    def is_special(self, token_id: int) -> bool:
        """Whether a token is never part of ordinary text.

        A role alone does not make it so: some files name a comma as their begin token.
        """
        kind = self.kinds[token_id]
        has_role = token_id in (self.bos, self.eos, self.unk)
        return kind == Kind.CONTROL or (has_role and kind != Kind.NORMAL)


def _first_repeated(tokens: Sequence[str]) -> str:
    seen: set[str] = set()
    for token in tokens:
        if token in seen:
            return token
        seen.add(token)
    return ""


def added_tokens(vocabulary: Vocabulary) -> list[Json]:
    """Tokens found in text before the model runs: control and user-defined ones."""
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": vocabulary.is_special(index),
            **vocabulary.matching.get(index, {}),
        }
        for index, token in enumerate(vocabulary.tokens)
        if token and (vocabulary.kinds[index] == Kind.USER_DEFINED or vocabulary.is_special(index))
    ]


def template(vocabulary: Vocabulary) -> Json | None:
    """Post-processor that adds the begin and end tokens; ``None`` where neither is wanted."""
    bos = vocabulary.text(vocabulary.bos) if vocabulary.add_bos else None
    eos = vocabulary.text(vocabulary.eos) if vocabulary.add_eos else None
    if bos is None and eos is None:
        return None

    def pieces(sequence: str, type_id: int) -> list[Json]:
        around = [
            {"SpecialToken": {"id": text, "type_id": type_id}} if text else None
            for text in (bos, eos)
        ]
        middle = {"Sequence": {"id": sequence, "type_id": type_id}}
        return [part for part in (around[0], middle, around[1]) if part]

    ids = {bos: vocabulary.bos, eos: vocabulary.eos}
    return {
        "type": "TemplateProcessing",
        "single": pieces("A", 0),
        "pair": pieces("A", 0) + pieces("B", 1),
        "special_tokens": {
            text: {"id": text, "ids": [index], "tokens": [text]}
            for text, index in ids.items()
            if text is not None
        },
    }


def tokenizer_json(
    vocabulary: Vocabulary,
    model: Mapping[str, Any],
    *,
    normalizer: Json | None,
    pre_tokenizer: Json | None,
    post_processor: Json | None,
    decoder: Json,
) -> bytes:
    """Assemble ``tokenizer.json``.

    Args:
        vocabulary: tokens.
        model: keys of the BPE model that differ from the defaults; ``merges`` at least.
        normalizer: as in the file.
        pre_tokenizer: as in the file.
        post_processor: as in the file.
        decoder: as in the file.
    """
    defaults = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary.ids(),
    }
    return dump(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added_tokens(vocabulary),
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": post_processor,
            "decoder": decoder,
            "model": defaults | dict(model),
        }
    )


def merge_list(merges: Sequence[tuple[str, str]]) -> list[Any]:
    """Merges as ``tokenizer.json`` has them: ``"a b"``, which every reader knows, if it can be."""
    if any(" " in left or " " in right for left, right in merges):
        return [list(pair) for pair in merges]
    return [f"{left} {right}" for left, right in merges]


def companions(vocabulary: Vocabulary) -> dict[str, bytes]:
    """The files beside ``tokenizer.json``.

    Returns:
        ``tokenizer_config.json``, ``special_tokens_map.json`` and ``generation_config.json``.
    """
    named = {
        "bos_token": vocabulary.text(vocabulary.bos),
        "eos_token": vocabulary.text(vocabulary.eos),
        "unk_token": vocabulary.text(vocabulary.unk),
        "pad_token": vocabulary.text(vocabulary.pad),
    }
    special = {name: text for name, text in named.items() if text is not None}
    config: Json = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": vocabulary.add_bos,
        "add_eos_token": vocabulary.add_eos,
        "clean_up_tokenization_spaces": False,
        **special,
    }
    if vocabulary.chat_template:
        config["chat_template"] = vocabulary.chat_template
    return {
        "tokenizer_config.json": dump(config),
        "special_tokens_map.json": dump(special),
        "generation_config.json": dump(_generation(vocabulary)),
    }


def _generation(vocabulary: Vocabulary) -> Json:
    ends = [vocabulary.eos, *vocabulary.stop]
    ids = list(dict.fromkeys(index for index in ends if index is not None))
    config: Json = {}
    if vocabulary.bos is not None:
        config["bos_token_id"] = vocabulary.bos
    if ids:
        config["eos_token_id"] = ids[0] if len(ids) == 1 else ids
    if vocabulary.pad is not None:
        config["pad_token_id"] = vocabulary.pad
    return config


def dump(value: Any) -> bytes:
    """JSON with a fixed layout, so that exporting twice gives the same bytes.

    Raises:
        CheckpointError: a text holds half of a surrogate pair, which no UTF-8 file can.
    """
    try:
        return json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8")
    except UnicodeEncodeError as error:
        raise CheckpointError("the tokenizer holds text that is not valid Unicode") from error
