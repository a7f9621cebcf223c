"""Arguments of a wrong type: every parameter of the Python API has one clear error for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerun
from edgerun.engine.chooser.params import all_options
from edgerun.errors import EdgerunError, InputError, PromptError
from edgerun.llm.llm import LLM
from edgerun.llm.options import LoadKeywords, LoadOptions
from edgerun.llm.scoring import score_texts
from tests.llm.test_llm import model

ODD: dict[str, Any] = {
    "None": None,
    "an int": 7,
    "a negative int": -1,
    "a long int": 10**30,
    "a float": 1.5,
    "nan": float("nan"),
    "a complex": 1j,
    "True": True,
    "numpy.bool": np.True_,
    "numpy.float32": np.float32(1.5),
    "numpy.int64": np.int64(3),
    "bytes": b"ab",
    "a bytearray": bytearray(b"ab"),
    "a memoryview": memoryview(b"ab"),
    "a text": "ab",
    "a surrogate": "\ud800",
    "a null character": "a\0b",
    "an empty text": "",
    "an object": object(),
    "a class": dict,
    "a function": len,
    "a list of floats": [1.0, 2.0],
    "a list of bools": [True],
    "a list of numpy.bool": [np.False_],
    "a list of texts": ["a", "b"],
    "a list of None": [None],
    "a list of lists": [[1], [2]],
    "a list of dicts": [{"role": "user"}],
    "a list of long ints": [10**30],
    "a list of bytes": [b"a"],
    "an empty list": [],
    "a dict": {"a": 1},
    "a dict of ids": {1: None},
    "a set": {1, 2},
    "an iterator": iter([1, 2]),
    "a float array": np.array([1.0, 2.0]),
    "a bool array": np.array([True]),
    "a table of ints": np.zeros((2, 2), int),
    "a single number as array": np.array(3),
}
LLM_CALLS: dict[str, Callable[[LLM, Any], Any]] = {
    "generate": lambda llm, odd: llm.generate(odd, max_tokens=1),
    "stream": lambda llm, odd: llm.stream(odd, max_tokens=1).result(),
    "generate_many": lambda llm, odd: llm.generate_many(odd, max_tokens=1),
    "generate_many, one prompt": lambda llm, odd: llm.generate_many([odd], max_tokens=1),
    "chat": lambda llm, odd: llm.chat(odd, max_tokens=1),
    "chat, one message": lambda llm, odd: llm.chat([odd], max_tokens=1),
    "chat, a role": lambda llm, odd: llm.chat([{"role": odd, "content": "x"}], max_tokens=1),
    "chat, a content": lambda llm, odd: llm.chat([{"role": "user", "content": odd}], max_tokens=1),
    "stream_chat": lambda llm, odd: llm.stream_chat(odd, max_tokens=1).result(),
    "logits": lambda llm, odd: list(llm.logits(odd)),
    "send": lambda llm, odd: llm.session().send(odd, max_tokens=1).result(),
    "system": lambda llm, odd: setattr(llm.session(), "system", odd),
    "save": lambda llm, odd: llm.session().save(odd),
    "load": lambda llm, odd: llm.session().load(odd),
    "score": lambda llm, odd: list(score_texts(llm, odd)),
    "score, one text": lambda llm, odd: list(score_texts(llm, [odd])),
    "score, window": lambda llm, odd: list(score_texts(llm, ["ab"], odd)),
}
ACCEPTED = {
    "generate": {"a text", "a null character"},
    "stream": {"a text", "a null character"},
    "generate_many": {
        "a list of texts",
        "a list of lists",
        "a table of ints",
        "an empty list",
    },
    "generate_many, one prompt": {"a text", "a null character"},
    "chat, a role": set(),
    "send": {"a text", "a null character"},
    "system": {"a text", "a null character", "an empty text", "a surrogate"},
    "save": {"a text"},
    "logits": set(),
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return model(max_sessions=3)


@pytest.mark.parametrize("call", LLM_CALLS)
def test_every_odd_argument_is_accepted_or_refused_in_one_line(
    llm: LLM, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    accepted = set()
    for name, odd in ODD.items():
        try:
            LLM_CALLS[call](llm, odd)
            accepted.add(name)
        except InputError as error:
            assert 10 < len(str(error)) < 400
            assert "\n" not in str(error)
    if call in ACCEPTED:
        assert accepted == ACCEPTED[call]


@pytest.mark.parametrize("name", [*(entry.name for entry in all_options()), "processors"])
def test_every_odd_sampling_parameter_is_accepted_or_refused(llm: LLM, name: str) -> None:
    options: dict[str, Any] = {"max_tokens": 2}
    for odd in ODD.values():
        for use in (llm.stream, llm.session().send):
            try:
                use("ab", **{**options, name: odd}).result()
            except EdgerunError as error:
                assert "\n" not in str(error)
        try:
            model(template=None).chat_params(**{name: odd})
        except EdgerunError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("name", ["path", *(entry.name for entry in fields(LoadOptions))])
def test_every_odd_load_option_is_accepted_or_refused(name: str, tmp_path: Path) -> None:
    for label, odd in ODD.items():
        options: dict[str, Any] = {name: odd}
        path = options.pop("path", tmp_path / "nowhere")
        if path is None:
            continue  # the model that comes with edgerun
        with pytest.raises(InputError) as refusal:
            edgerun.load(path, **options)
        assert "\n" not in str(refusal.value), label


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda llm: llm.generate(b"abc"), r"the prompt is b'abc'; expected a text or a list of"),
        (lambda llm: llm.generate([1.7, 2]), r"item 0 of the prompt is 1.7; expected a token id"),
        (lambda llm: llm.generate([1, True]), r"item 1 of the prompt is True; expected a token id"),
        (lambda llm: llm.generate_many("abc"), r"prompts is 'abc'; expected a list of prompts"),
        (lambda llm: llm.generate_many([1, 2]), r"prompt 0 is 1; expected a text or a list of"),
        (lambda llm: llm.chat("hello"), r"messages is 'hello'; expected a list such as \[\{"),
        (lambda llm: llm.session().send(b"x"), r"the message is b'x'; expected a text"),
    ],
)
def test_mistakes_are_named(llm: LLM, call: Callable[[LLM], Any], words: str) -> None:
    with pytest.raises(PromptError, match=words):
        call(llm)


@pytest.mark.parametrize("ids", [(104, 105), range(104, 106), np.array([104, 105], np.uint16)])
def test_ids_may_come_in_any_list_of_whole_numbers(llm: LLM, ids: Any) -> None:
    expected = llm.generate([104, 105], max_tokens=3).ids
    assert llm.generate(ids, max_tokens=3).ids == expected
    assert llm.generate_many([ids], max_tokens=3)[0].ids == expected


def test_numbers_of_numpy_are_numbers(llm: LLM) -> None:
    options: dict[str, Any] = {"seed": np.int64(5), "top_k": np.uint8(3), "max_tokens": np.int32(4)}
    numbers: dict[str, Any] = {"temperature": np.float32(1.5), "top_p": np.float64(0.9)}
    completion = llm.generate("ab", **options, **numbers, logit_bias={np.int64(65): np.float32(2)})
    plain: dict[str, Any] = {name: value.item() for name, value in {**options, **numbers}.items()}
    assert completion.ids == llm.generate("ab", **plain, logit_bias={65: 2.0}).ids
    assert LoadOptions(max_sessions=np.int64(3)).max_sessions == 3  # type: ignore[arg-type]


def test_keywords_for_type_checkers_are_those_that_exist() -> None:
    assert list(LoadKeywords.__annotations__) == [entry.name for entry in fields(LoadOptions)]
