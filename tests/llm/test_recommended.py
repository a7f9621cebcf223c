"""What a model recommends for sampling, texts among it, which are matched with tokens."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.chooser.processor import processor_types
from edgerun.engine.sampling.dry import Dry
from edgerun.llm.llm import LLM
from edgerun.model.config import sampling_defaults
from tests.support import fakes

CHECKS = {entry.name: entry.kind.check for kind in processor_types() for entry in kind.options()}


def recommended(**file: Any) -> dict[str, Any]:
    return sampling_defaults(file, CHECKS, "B/generation_config.json")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"top_k": -2}, "top_k is -2; expected a whole number from 0 to 2147483647"),
        ({"top_k": ["5"]}, "top_k is ['5']; expected"),
        ({"top_k": 0.5}, "top_k is 0.5; expected"),
        ({"top_p": 0}, "top_p is 0; expected a number above 0 up to 1"),
        ({"top_p": "0.9"}, "top_p is '0.9'; expected"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; expected"),
        ({"temperature": True}, "temperature is True; expected"),
        ({"temperature": float("nan")}, "temperature is nan; expected"),
        ({"dry_sequence_breakers": [1]}, "dry_sequence_breakers is [1]; expected"),
    ],
    ids=str,
)
def test_what_cannot_be_is_left_out_and_this_is_said(
    caplog: pytest.LogCaptureFixture, value: dict[str, Any], words: str
) -> None:
    assert recommended(**value, min_p=0.1) == {"min_p": 0.1}
    (message,) = caplog.messages
    assert message.startswith(f"B/generation_config.json: {words}")
    assert message.endswith("; this recommendation is left out")


def test_a_model_recommends_numbers_and_lists_of_texts(caplog: pytest.LogCaptureFixture) -> None:
    file = {"top_k": 5.0, "min_p": None, "dry_sequence_breakers": ["."], "stop": [1]}
    assert recommended(**file) == {"top_k": 5, "dry_sequence_breakers": (".",)}
    assert recommended(top_k=-1, temperature=1) == {"temperature": 1.0}
    assert caplog.messages == []


def test_a_model_that_recommends_no_way_to_draw_is_drawn_from_carefully() -> None:
    assert recommended() == {"temperature": 0.7, "top_p": 0.95}
    careful = {"temperature": 0.7, "top_p": 0.95, "repetition_penalty": 1.1}
    assert recommended(repetition_penalty=1.1) == careful
    for way in ({"temperature": 1.0}, {"top_k": 40}, {"top_p": 0.5}, {"min_p": 0.1}):
        assert recommended(**way) == way


def test_greedy_choice_has_the_penalties_of_the_file() -> None:
    penalties = {"repetition_penalty": 1.3, "dry_multiplier": 0.8}
    drawing = {"temperature": 0.7, "top_k": 5, "typical_p": 0.2}
    greedy = recommended(do_sample=False, **drawing, **penalties)
    assert greedy == {"temperature": 0.0, "top_k": 5, **penalties}
    llm = LLM(fakes.fake_model(sampling_defaults=greedy))
    plain = LLM(fakes.fake_model()).generate("Once upon a time", max_tokens=64).ids
    assert llm.generate("Once upon a time", max_tokens=64).ids != plain
    assert recommended(do_sample=False) == {"temperature": 0.0}


def test_what_is_not_to_be_said_again_is_broken_by_texts() -> None:
    """The fake model's tokens are bytes, so that a text of two goes over two of them."""
    dry = {"dry_multiplier": 1.0, "dry_allowed_length": 1}
    defaults = {**dry, "dry_sequence_breakers": ["by"], "temperature": 0}
    llm = LLM(fakes.fake_model(sampling_defaults=defaults))
    logits = np.zeros(llm.model.vocab_size, np.float32)

    def penalised(text: str, **sampling: Any) -> str:
        params = llm.params(**sampling)
        chooser = Chooser(params, llm.tokenizer.encode(text), len(logits))
        return llm.tokenizer.decode(np.flatnonzero(chooser._filtered(logits).logits).tolist())

    assert penalised("abxaby") == ""
    assert penalised("abyxab") == ""
    assert penalised("abyxab", dry_sequence_breakers=[]) == "y"
    assert penalised("abyxa") == "b"
    assert penalised("abyxa", processors=[Dry(**dry, dry_sequence_breakers=["ab"])]) == ""


def test_params_go_to_another_process_where_the_model_has_its_own_vocabulary() -> None:
    here, there = LLM(fakes.fake_model()), LLM(fakes.fake_model())
    options: dict[str, Any] = {"dry_multiplier": 2.0, "dry_sequence_breakers": ["^~"], "seed": 3}
    params = here.params(**options, temperature=0.5, top_k=9, logit_bias={94: 1.0}, max_tokens=80)
    data = pickle.dumps(params)
    assert len(data) < 2000
    arrived = pickle.loads(data)
    assert arrived == params
    expected = here.generate("Once", **params.values()).ids
    assert expected != here.generate("Once", **{**params.values(), "dry_multiplier": 0}).ids
    assert there.generate("Once", **arrived.values()).ids == expected
    rest = {name: getattr(arrived, name) for name in ("seed", "max_tokens")}
    assert there.generate("Once", processors=list(arrived.processors), **rest).ids == expected
    for copied in (copy.deepcopy(params), arrived.with_vocabulary(there.tokenizer)):
        assert Chooser(copied, [65], fakes.VOCAB).position == 1
    dry = next(each for each in params.processors if isinstance(each, Dry))
    assert copy.copy(dry).vocabulary is here.tokenizer
