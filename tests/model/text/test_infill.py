"""Texts with a gap, as models of code are given them."""

from __future__ import annotations

import json

import pytest

from edgerun.errors import UnsupportedError
from edgerun.model.text.infill import FORMS, Infill
from edgerun.model.text.tokenizer import Tokenizer
from tests.support import fakes


def tokenizer_with(*names: str, text: str | None = None) -> Tokenizer:
    """A tokenizer with more control tokens, behind those that it has."""
    content = json.loads(text or fakes.byte_tokenizer_json())
    first = 1 + max(
        *content["model"]["vocab"].values(), *(t["id"] for t in content["added_tokens"])
    )
    content["added_tokens"] += [
        {**content["added_tokens"][0], "id": first + index, "content": name}
        for index, name in enumerate(names)
    ]
    config = {"bos_token": "<s>", "add_bos_token": True} if text else {}
    return Tokenizer.from_json(json.dumps(content), config)


# The orders that the models' cards and mistral-common show.
ORDERS = {
    "fim": "<|fim_prefix|>B<|fim_suffix|>A<|fim_middle|>",
    "starcoder": "<fim_prefix>B<fim_suffix>A<fim_middle>",
    "granite": "<fim-prefix>B<fim-suffix>A<fim-middle>",
    "deepseek": "<｜fim▁begin｜>B<｜fim▁hole｜>A<｜fim▁end｜>",
    "codellama": "▁<PRE>B▁<SUF>A▁<MID>",
    "glm": "<|code_prefix|>B<|code_suffix|>A<|code_middle|>",
    "codestral": "[SUFFIX]A[PREFIX]B",
    "seed": "<[fim-suffix]>A<[fim-prefix]>B<[fim-middle]>",
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_has_its_order(name: str) -> None:
    tokenizer = tokenizer_with(*FORMS[name].tokens)
    infill = Infill(tokenizer)
    before, after = "def f(<s>", "\n)[PREFIX]<|fim_middle|>"  # letters, all of them
    ids = infill.encode(before, after)
    expected = tokenizer.encode_template(
        ORDERS[name], lambda run: {"B": before, "A": after}.get(run, run)
    )
    assert ids == [*tokenizer.bos_ids, *expected]
    controls = {tokenizer.controls.id_of(token) for token in FORMS[name].tokens}
    assert controls <= set(infill.stop_ids)
    assert sum(id_ in tokenizer.control_ids for id_ in ids) == len(controls)


def test_ends_that_a_model_has_end_a_gap() -> None:
    infill = Infill(tokenizer := tokenizer_with(*FORMS["fim"].tokens, "<|file_sep|>", "<other>"))
    assert tokenizer.controls.id_of("<|file_sep|>") in infill.stop_ids
    assert tokenizer.controls.id_of("<other>") not in infill.stop_ids


def test_a_sequence_begins_with_the_text_before_the_gap() -> None:
    """Where a space is put before a sequence it is not put before the text behind the gap."""
    tokenizer = tokenizer_with(
        *FORMS["codestral"].tokens, text=fakes.spm_tokenizer_json(prepend="first")
    )
    ids = Infill(tokenizer).encode("x", "y")
    spelled = [tokenizer.spelled_bytes(id_).decode() for id_ in ids]
    assert spelled == ["<s>", "[SUFFIX]", "y", "[PREFIX]", " ", "x"]


def test_one_text_may_be_empty() -> None:
    infill = Infill(tokenizer := tokenizer_with(*FORMS["fim"].tokens))
    before, after, gap = (tokenizer.controls.id_of(name) for name in FORMS["fim"].tokens)
    assert infill.encode("", "") == [before, after, gap]
    assert infill.encode("", "a") == [before, after, ord("a"), gap]


@pytest.mark.parametrize("names", [(), FORMS["fim"].tokens[:2]])
def test_without_its_control_tokens_a_model_fills_nothing(names: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedError, match="no control tokens that say where a gap in a text"):
        Infill(tokenizer_with(*names))
