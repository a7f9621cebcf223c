"""The official tests of JSON schemas: what compiles accepts what is valid, and nothing else."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import llguidance
import pytest

from edgerun.engine.constraints import trial
from edgerun.engine.constraints.kinds import Schema
from edgerun.errors import SamplingError

TOKENS = trial._single_bytes({}, 0)
LIBRARY = trial.token_library(TOKENS, slices=[])
IDS = {token: id_ for id_, token in enumerate(TOKENS) if len(token) == 1}
# A reference beside which a ``$id`` stands that drafts before 2019-09 ignore there.
ACCEPTED = {"$ref prevents a sibling $id from changing the base uri"}
# How a number is written counts here; formats are more than a remark; properties have an order.
ROUGHLY_VALID = 0.93


def accepts(grammar: str, text: str) -> bool:
    """Whether a grammar accepts a whole text, byte by byte."""
    limits = llguidance.LLParserLimits(**trial.LIMITS)
    matcher = llguidance.LLMatcher(LIBRARY, grammar, log_level=0, limits=limits)
    ids = [IDS[bytes([byte])] for byte in text.encode()]
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def written(value: Any, schema: Any) -> str:
    """A value as replies have it: without spaces, and in the order of the schema's properties."""
    if isinstance(value, dict) and isinstance(schema, dict):
        names = [*schema.get("properties", {}), *schema.get("required", [])]
        places = {name: place for place, name in reversed(list(enumerate(names)))}
        value = dict(sorted(value.items(), key=lambda item: places.get(item[0], len(names))))
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize(
    ("draft", "fewest_schemas"),
    [
        pytest.param("draft4", 110, marks=pytest.mark.slow),
        pytest.param("draft6", 150, marks=pytest.mark.slow),
        pytest.param("draft7", 150, marks=pytest.mark.slow),
        pytest.param("draft2019-09", 165, marks=pytest.mark.slow),
        ("draft2020-12", 165),
    ],
)
def test_valid_values_are_accepted_and_others_are_not(
    draft: str, fewest_schemas: int, shared_data: Path
) -> None:
    counts: Counter[tuple[bool, bool]] = Counter()
    compiled = 0
    for file in sorted((shared_data / "json-schema-test-suite" / "tests" / draft).glob("*.json")):
        for group in json.loads(file.read_text("utf-8")):
            try:
                text = Schema().check("json_schema", group["schema"])
                grammar = trial.grammar_of("json_schema", str(text))
            except SamplingError as error:
                assert "; expected a schema" in str(error)
                continue
            compiled += 1
            for case in group["tests"]:
                accepted = accepts(grammar, written(case["data"], group["schema"]))
                assert case["valid"] or not accepted or group["description"] in ACCEPTED, case
                counts[case["valid"], accepted] += 1
    assert compiled >= fewest_schemas
    valid = counts[True, True] + counts[True, False]
    assert counts[True, True] >= ROUGHLY_VALID * valid
    assert valid > 200
