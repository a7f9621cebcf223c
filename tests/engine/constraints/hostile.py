"""Grammars that are meant to take time, memory or stack, and what becomes of one of them.

python -m tests.engine.constraints.hostile NAME
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.params import SamplingParams
from edgerun.errors import ChooserError, SamplingError
from tests.engine.constraints.vocabularies import logits_behind
from tests.support import fakes

ADDRESS_BYTES = 2 << 30
STEPS = 300
Options = dict[str, Any]


def references(count: int) -> Options:
    """A chain of references."""
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(count)}
    return {"$defs": {**chain, f"d{count}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def nested(depth: int, keyword: str) -> Options:
    schema: Options = {"type": "string"}
    for _ in range(depth):
        if keyword == "object":
            schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        elif keyword == "items":
            schema = {"type": "array", "items": schema}
        else:
            schema = {keyword: [schema, {"minLength": 1}]}
    return schema


def objects(count: int, required: bool) -> Options:
    names = [f"p{i}" for i in range(count)]
    properties = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": properties, "required": names if required else []}


def product(count: int) -> Options:
    """Each part doubles what the parts before make of one another."""
    options = [
        [{"properties": {f"k{i}_{j}": {"type": "string"}}} for j in (0, 1)] for i in range(count)
    ]
    return {"allOf": [{"anyOf": each} for each in options]}


def chain(count: int, rule: str) -> str:
    rules = [f"{rule}{i}: {rule}{i + 1} {rule}{i + 1}" for i in range(count)]
    return "\n".join([f"start: {rule}0", *rules, f'{rule}{count}: "a"'])


GRAMMARS: dict[str, Callable[[], Options]] = {
    "refs": lambda: {"json_schema": references(5000)},
    "nested_objects": lambda: {"json_schema": nested(60, "object")},
    "nested_arrays": lambda: {"json_schema": nested(120, "items")},
    "nested_all": lambda: {"json_schema": nested(60, "allOf")},
    "nested_any": lambda: {"json_schema": nested(60, "anyOf")},
    "nested_beyond": lambda: {"json_schema": nested(300, "items")},
    "product": lambda: {"json_schema": product(12)},
    "props_1000": lambda: {"json_schema": objects(1000, required=False)},
    "props_20000": lambda: {"json_schema": objects(20_000, required=True)},
    "enum": lambda: {"json_schema": {"enum": [f"value {i}" for i in range(50_000)]}},
    "min_items": lambda: {"json_schema": {"type": "array", "minItems": 10**9}},
    "min_length": lambda: {"json_schema": {"type": "string", "minLength": 10**9}},
    "max_length": lambda: {"json_schema": {"type": "string", "maxLength": 10**6}},
    "multiple": lambda: {"json_schema": {"type": "integer", "multipleOf": 1_000_003}},
    "multiples": lambda: {
        "json_schema": {"allOf": [{"type": "integer", "multipleOf": p} for p in (997, 991, 983)]}
    },
    "range": lambda: {"json_schema": {"type": "number", "minimum": -1e18, "maximum": 1e18 + 7}},
    "patterns": lambda: {
        "json_schema": {"type": "object", "patternProperties": {"^(a+)+$": {}, "(b|c)*d{900}": {}}}
    },
    "rx_rep": lambda: {"regex": "((a{100}){100}){100}"},
    "rx_any": lambda: {"regex": "(?s:.){1000000}"},
    "rx_states": lambda: {"regex": "(a|b)*a(a|b){200}"},
    "rx_backtrack": lambda: {"regex": "(.*a.{20}){20}"},
    "rx_evil": lambda: {"regex": "((a+)+)+b"},
    "rx_long": lambda: {"regex": "ab?" * 20_000},
    "rx_words": lambda: {"regex": "|".join(f"w{i}" for i in range(8_000))},
    "rx_letters": lambda: {"regex": r"\p{L}{0,5000}"},
    "lark_nested": lambda: {"grammar": f"start: {'(' * 100_000}a{')' * 100_000}"},
    "lark_chain": lambda: {"grammar": chain(20_000, "r")},
    "lark_terminals": lambda: {"grammar": chain(40, "T")},
    "lark_rules": lambda: {"grammar": chain(40, "r")},
    "lark_ambiguous": lambda: {"grammar": 'start: x x x x x\nx: x x | "a" |'},
    "lark_itself": lambda: {"grammar": "start: start"},
    "lark_right": lambda: {"grammar": 'start: "a" start | "a"'},
    "lark_and_not": lambda: {"grammar": "start: T\nT: /(.*a.*b){9}/ & ~/(.*b.*a.{9}){9}/"},
    "lark_json": lambda: {"grammar": f"start: %json {'[' * 10_000}"},
    "gbnf_nested": lambda: {"grammar": f"root ::= {'(' * 50_000}"},
    "gbnf_repeated": lambda: {"grammar": 'root ::= ("a"{9999}){9999}'},
}


def outcome(options: Options) -> dict[str, Any]:
    """Begins a reply, and goes on with it; how that ended and what it took."""
    tokenizer = fakes.byte_tokenizer()
    start, mask_s, tokens, refusal, error = time.perf_counter(), 0.0, 0, "", ""
    try:
        params = SamplingParams(**options, temperature=2.0, seed=1).with_vocabulary(tokenizer)
        chooser = Chooser(params, [], fakes.VOCAB)  # so that it goes on while it may
        while tokens < STEPS and not chooser.is_complete:
            logits, begun = logits_behind([tokens], fakes.VOCAB), time.perf_counter()
            chooser.accept(chooser.draw(logits))
            mask_s, tokens = max(mask_s, time.perf_counter() - begun), tokens + 1
    except SamplingError as refused:
        refusal = str(refused)
    except ChooserError as failed:
        error = str(failed)
    return {
        "seconds": time.perf_counter() - start,
        "mask_s": mask_s,
        "tokens": tokens,
        "refusal": refusal,
        "error": error,
        "megabytes": peak_megabytes(),
    }


def peak_megabytes() -> int:
    """Of this program alone: ``getrusage`` counts what its parent had when it was started."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kilobytes) >> 10


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    sys.stdout.write(json.dumps(outcome(GRAMMARS[sys.argv[1]]())) + "\n")
