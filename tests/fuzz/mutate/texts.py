"""Hostile tokenizers and chat templates, put together from what their languages offer."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from tests.fuzz.mutate.json_tree import change, mutate_json
from tests.fuzz.mutate.values import integer, text, write_json

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
GROW = 1000
REGEXES = ("(a+)+$", ".*", "", "(", "\\p{L}+", "(?=a)", "(a|a)*b", "[^\\s]", "x{1000}{1000}", "\\1")
EXPRESSIONS = (
    "messages", "messages[0].content", "messages[0]['content'] * 1000000", "bos_token",
    "undefined.x", "range(1000000000) | list", "'a' * 10 ** 9", "messages | tojson",
    "messages | tojson(indent=10**9)",
    "[].append(1)", "''.__class__.__mro__", "cycler.__init__.__globals__", "lipsum",
    "self._TemplateReference__context",
    "messages[0].content | upper | urlencode", "messages[-1].role", "namespace(x=1).x", "1 / 0",
    "'%s' % messages", "raise_exception('no')", "strftime_now('%Y' * 100000)", "messages[::0]",
    "messages[0].content.split('')", "dict(a=1)", "joiner(',')()", "x is sequence", "not messages",
    "messages | map(attribute='content') | join", "tools",
    "(" * 200 + "1" + ")" * 200, "2 ** 2 ** 31",
)  # fmt: skip
BLOCKS = (
    "{{% for m in {0} %}}{{{{ {1} }}}}{{% endfor %}}",
    "{{% if {0} %}}{{{{ {1} }}}}{{% else %}}{{% endif %}}",
    "{{% set x = {0} %}}{{{{ {1} }}}}",
    "{{% macro f(a) %}}{{{{ f({0}) }}}}{{% endmacro %}}{{{{ f({1}) }}}}",
    "{{% for a in range(99999) %}}{{% for b in range(99999) %}}{{{{ {0} }}}}{{% endfor %}}"
    "{{% endfor %}}",
    "{{% filter upper %}}{{{{ {0} }}}}{{% endfilter %}}{{{{ {1} }}}}",
    "{{{{ {0} }}}}{{{{ {1} }}}}",
    "{{% generation %}}{{{{ {0} }}}}{{% endgeneration %}}",
    "{{% include '/etc/passwd' %}}{{{{ {0} }}}}",
    "{{% import '../secret' as s %}}{{{{ s.x }}}}",
    "{{% raw %}}{{{{ {0} }}}}",
    "{{# {0} {1}",
)


def mutate_tokenizer(data: bytes, draw: random.Random) -> bytes:
    """Changes a ``tokenizer.json`` anywhere, or exchanges one of its steps."""
    if draw.random() < 0.5:
        return mutate_json(data, draw)
    tree = json.loads(data)
    for _ in range(draw.choice((1, 1, 2))):
        key, choices = draw.choice(STEPS)
        step = draw.choice(choices)(draw)
        if draw.random() < 0.3:
            field = "normalizers" if key == "normalizer" else key + "s"
            step = {"type": "Sequence", field.replace("_", ""): [step] * draw.choice((1, 2, 20))}
        tree[key] = step
    if draw.random() < 0.3:
        change(tree, draw)
    if draw.random() < 0.2:
        _add_tokens(tree, draw)
    return write_json(tree)


def _replace(draw: random.Random) -> dict[str, Any]:
    pattern = draw.choice(({"String": "a"}, {"String": ""}, {"Regex": draw.choice(REGEXES)}))
    content = draw.choice(("", "b", "a" * GROW, " ", text(draw)))
    return {"type": "Replace", "pattern": pattern, "content": content}


def _bomb(draw: random.Random) -> dict[str, Any]:
    """Replacements that multiply the text one after the other."""
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 50}
    return {"type": "Sequence", "normalizers": [step] * draw.randrange(2, 8)}


def _split(draw: random.Random) -> dict[str, Any]:
    behaviour = draw.choice(("Isolated", "Removed", "MergedWithPrevious", "Contiguous", "?"))
    pattern = {"Regex": draw.choice(REGEXES)}
    return {"type": "Split", "pattern": pattern, "behavior": behaviour, "invert": False}


def _typed(*names: str, **fields: Any) -> Callable[[random.Random], dict[str, Any]]:
    return lambda draw: {"type": draw.choice(names), **fields}


def _template_step(draw: random.Random) -> dict[str, Any]:
    single = [{"SpecialToken": {"id": text(draw), "type_id": 0}}] * draw.choice((1, 5000))
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}


def _model(draw: random.Random) -> dict[str, Any]:
    kinds: tuple[dict[str, Any], ...] = (
        {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"},
        {"type": "Unigram", "vocab": [["a", -1.0], ["", float("-inf")]], "unk_id": integer(draw)},
        {"type": "WordPiece", "vocab": {"a": integer(draw)}, "unk_token": "b",
         "continuing_subword_prefix": "##", "max_input_chars_per_word": integer(draw)},
        {"type": "BPE", "vocab": {"a": 0, "b": 2**31}, "merges": ["a b"]},
        {"type": "BPE", "vocab": {}, "merges": []},
    )  # fmt: skip
    return draw.choice(kinds)


STEPS: tuple[tuple[str, tuple[Callable[[random.Random], Any], ...]], ...] = (
    ("normalizer", (_replace, _bomb, _typed("NFKC", "Lowercase", "Nmt", "Precompiled", "?"),
                    _typed("Prepend", prepend="a" * 9999),
                    _typed("Precompiled", precompiled_charsmap="AAAA"))),
    ("pre_tokenizer", (_split, _typed("Whitespace", "ByteLevel", "Digits", "?"),
                       _typed("Metaspace", replacement="▁▁", prepend_scheme="first", split=True),
                       _typed("FixedLength", length=0))),
    ("decoder", (_replace, _typed("Fuse", "ByteFallback", "BPEDecoder", "CTC", "?"),
                 _typed("Strip", content="a", start=2**31, stop=2**31))),
    ("post_processor", (_template_step, _typed("BertProcessing", sep=["a", 0], cls=["b", 2**31]))),
    ("model", (_model,)),
)  # fmt: skip


def _add_tokens(tree: dict[str, Any], draw: random.Random) -> None:
    tokens = [
        {"id": integer(draw, 260) % 2**32, "content": text(draw), "special": draw.random() < 0.5,
         "single_word": False, "lstrip": True, "rstrip": True, "normalized": draw.random() < 0.5}
        for _ in range(draw.randrange(1, 4))
    ]  # fmt: skip
    tree["added_tokens"] = [*tree.get("added_tokens", []), *tokens]


def mutate_template(data: bytes, draw: random.Random) -> bytes:
    """Puts a made-up chat template into a ``tokenizer_config.json``."""
    tree = json.loads(data)
    source = "".join(
        draw.choice(BLOCKS).format(draw.choice(EXPRESSIONS), draw.choice(EXPRESSIONS))
        for _ in range(draw.randrange(1, 4))
    )
    if draw.random() < 0.2:
        at = draw.randrange(len(source))
        source = source[:at] + draw.choice(("{%", "%}", "{{", "}}", "\0", "|", "'")) + source[at:]
    tree["chat_template"] = draw.choice(
        (source, source, source, [{"name": "default", "template": source}], {"default": source})
    )
    return write_json(tree)
