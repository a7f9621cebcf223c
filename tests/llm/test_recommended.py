"""What a model recommends for sampling, texts among it, which are matched with tokens."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np

from edgerun.engine.chooser.chooser import Chooser
from edgerun.engine.sampling.dry import Dry
from edgerun.llm.llm import LLM
from edgerun.model.config import sampling_defaults
from tests.support import fakes


def test_a_list_is_no_number() -> None:
    file = {"temperature": [], "top_k": ["5"], "min_p": 0.1}
    assert sampling_defaults(file, file) == {"min_p": 0.1}


def test_a_model_recommends_numbers_and_lists_of_texts() -> None:
    file = {"top_k": 5, "min_p": None, "dry_sequence_breakers": ["."], "stop": [1], "top_p": "x"}
    assert sampling_defaults(file, file) == {"top_k": 5, "dry_sequence_breakers": ["."]}


def test_greedy_choice_has_the_penalties_of_the_file() -> None:
    penalties = {"repetition_penalty": 1.3, "dry_multiplier": 0.8}
    drawing = {"temperature": 0.7, "top_k": 5, "typical_p": 0.2}
    recommended = sampling_defaults(
        {"do_sample": False, **drawing, **penalties}, [*drawing, *penalties]
    )
    assert recommended == {"temperature": 0.0, "top_k": 5, **penalties}
    llm = LLM(fakes.fake_model(sampling_defaults=recommended))
    plain = LLM(fakes.fake_model()).generate("Once upon a time", max_tokens=64).ids
    assert llm.generate("Once upon a time", max_tokens=64).ids != plain
    assert sampling_defaults({"do_sample": False}, drawing) == {"temperature": 0.0}


def test_what_is_not_to_be_said_again_is_broken_by_texts() -> None:
    """The fake model's tokens are bytes, so that a text of two goes over two of them."""
    dry = {"dry_multiplier": 1.0, "dry_allowed_length": 1}
    recommended = {**dry, "dry_sequence_breakers": ["by"], "temperature": 0}
    llm = LLM(fakes.fake_model(sampling_defaults=recommended))
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
