"""Structured output from models, alone and together, in turns, with drafts, from threads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgerun
from edgerun.engine.drafting.base import Draft, Drafter
from edgerun.engine.drafting.drafting import Drafting
from edgerun.errors import MissingDependencyError, SamplingError
from edgerun.llm.llm import LLM
from edgerun.llm.loading import resolve
from edgerun.llm.replies.completion import Completion
from edgerun.model.text.tokenizer import Tokenizer
from tests.engine.constraints.schemas import is_valid, schemas
from tests.llm.test_drafts import Eager, engine_of
from tests.llm.test_loading import altered
from tests.support import fakes
from tests.support.bundles import bundle_of

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["☃", "tall"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The model that comes with edgerun."""
    with edgerun.load(context=512) as loaded:
        yield loaded


@settings(max_examples=8)
@given(st.lists(schemas(), min_size=1, max_size=4), st.integers(0, 99), st.sampled_from([0, 1.5]))
def test_replies_of_a_real_model_are_as_schemas_say(
    llm: LLM, asked: list[dict[str, Any]], seed: int, temperature: float
) -> None:
    """Several at a time, each with a schema of its own."""
    options: Any = [{"json_schema": schema} for schema in asked]
    prompts = ["Tell me about it."] * len(asked)
    replies = llm.generate_many(
        prompts, options, temperature=temperature, seed=seed, max_tokens=300
    )
    for reply, schema in zip(replies, asked, strict=True):
        assert reply.finish_reason in ("stop", "length"), reply.error
        if reply.finish_reason == "stop":  # a number may have digits without end
            assert is_valid(json.loads(reply.text), schema)


@pytest.fixture(scope="module")
def byte_level() -> LLM:
    """Another model, whose tokens are bytes and a few more."""
    return edgerun.load(bundle_of("llama", weights="int4"))


@pytest.mark.parametrize("temperature", [0, 1.3])
def test_every_call_of_a_model_takes_a_schema(byte_level: LLM, temperature: float) -> None:
    options: Any = {"temperature": temperature, "seed": 3, "max_tokens": 60}
    options |= {"json_schema": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}}
    messages = [{"role": "user", "content": "Well?"}]
    replies = [
        byte_level.generate("Well?", **options),
        byte_level.chat(messages, **options),
        byte_level.stream("Well?", **options).result(),
        *byte_level.generate_many(["a", "b"], **options),
        *byte_level.chat_many([messages], **options),
    ]
    with byte_level.session() as session:
        replies += [session.send(text, **options).result() for text in ("Well?", "And?")]
        replies.append(session.send("plain", max_tokens=5, temperature=0).result())
    for reply in replies[:-1]:
        assert reply.finish_reason == "stop"
        assert is_valid(json.loads(reply.text), {**options["json_schema"], "minItems": 0})
    assert len(replies[-1].ids) == 5


def test_a_session_goes_on_behind_a_reply_that_was_complete(llm: LLM) -> None:
    """The last token is part of the reply, and what is cached holds for the next turn."""
    with llm.session() as session:
        first = session.send("A person, please.", json_schema=PERSON, temperature=0).result()
        second = session.send("And now?", temperature=0, max_tokens=12).result()
    messages = [
        {"role": "user", "content": "A person, please."},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And now?"},
    ]
    assert is_valid(json.loads(first.text), PERSON)
    assert llm.chat(messages, temperature=0, max_tokens=12).text == second.text


def plain(completion: Completion) -> tuple[str, list[int], str]:
    return completion.text, completion.ids, completion.finish_reason


class Almost(Drafter):
    """Drafts what will be said, of which some ids are altered."""

    def __init__(self, ids: list[int], prompt_tokens: int) -> None:
        self.ids, self.prompt_tokens = ids, prompt_tokens

    def draft(self, ids: list[int], most: int) -> Draft | None:
        place = len(ids) - self.prompt_tokens
        right = self.ids[place : place + most]
        return Draft([id_ if id_ % 7 else id_ + 1 for id_ in right], 0, 0.5) if right else None


@pytest.mark.parametrize("temperature", [0, 1.3])
def test_drafts_change_nothing(llm: LLM, temperature: float) -> None:
    """Right drafts, wrong ones, and those that the grammar does not allow."""
    options: Any = {"json_schema": PERSON, "temperature": temperature, "seed": 1}
    expected = llm.generate("A person: ", **options)
    prompt = llm.tokenizer.encode("A person: ")
    drafting: Any = Drafting(lambda: Almost(expected.ids, len(prompt)), takes_back=True)
    drafting.pace = Eager()
    engine = engine_of(llm, drafting)
    sequence = engine.sequence(prompt, llm.params(**options))
    assert [token.id for token in engine.tokens(sequence)] == expected.ids
    assert sequence.finish_reason == expected.finish_reason == "stop"
    assert 0 < sequence.stats.accepted_tokens < sequence.stats.drafted_tokens


def test_threads_with_grammars_of_their_own_share_a_model(llm: LLM) -> None:
    expressions = ["[a-f]{4,40}", "(ab|ba){3,9}!", "[0-9]+", "[^ ]{1,30}\\."]

    def one(index: int) -> tuple[str, list[int], str]:
        options: Any = {"regex": expressions[index % 4], "seed": index, "max_tokens": 40}
        return plain(llm.generate(f"Say {index}: ", temperature=1.0, **options))

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(one, range(8)))
    assert together == [one(index) for index in range(8)]
    for index, (text, _, reason) in enumerate(together):
        assert reason == "length" or re.fullmatch(expressions[index % 4], text)


def test_a_reply_that_is_cut_says_so(llm: LLM) -> None:
    reply = llm.generate("A person: ", json_schema=PERSON, max_tokens=4, temperature=0)
    assert (reply.finish_reason, len(reply.ids)) == ("length", 4)
    assert reply.text.startswith('{"name":"'[: len(reply.text)])


def test_a_reply_that_is_complete_with_its_last_token_is_no_cut_one() -> None:
    llm = LLM(fakes.fake_model())
    for most in (3, 4):
        reply = llm.generate("x", regex="abc", max_tokens=most)
        assert plain(reply) == ("abc", [*b"abc"], "stop")
    assert llm.generate("x", regex="abc", max_tokens=2).finish_reason == "length"
    assert llm.generate("x", regex="abc", ignore_eos=True).finish_reason == "stop"
    pieces = list(llm.stream("x", regex="☃+b", max_tokens=9, temperature=3.0, seed=1))
    assert (
        "".join(pieces)
        == llm.generate("x", regex="☃+b", max_tokens=9, temperature=3.0, seed=1).text
    )


def test_the_model_ends_its_reply_where_the_grammar_lets_it() -> None:
    """The model would end it at once, and again and again."""
    prompt = fakes.byte_tokenizer().encode("hi")
    ending = fakes.FakeExecutable({len(prompt) + place: fakes.END for place in range(400)})
    llm = LLM(fakes.fake_model(ending))
    assert plain(llm.generate("hi", regex="[a-c]{3}d*")) == ("aaa", [*b"aaa"], "stop")
    assert llm.generate("hi", regex="[a-c]{3}d*", ignore_eos=True, max_tokens=9).text == "aaadddddd"
    assert llm.generate("hi", regex="a{9}", stop="aaa").text == ""
    assert llm.generate("hi", regex="a{2}b", stop_ids=[98]).text == "aa"


def test_a_space_at_the_start_of_a_reply_stays_where_it_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What SentencePiece puts before the first word of a text is left out of other replies."""
    monkeypatch.setattr(fakes, "VOCAB", 400)
    text = fakes.spm_tokenizer_json(prepend="first", merges=())
    tokenizer = Tokenizer.from_json(text, {"bos_token": "<s>", "eos_token": "</s>"})
    space = tokenizer.token_id("▁")
    always_spaces = fakes.FakeExecutable(dict.fromkeys(range(999), space))
    llm = LLM(fakes.fake_model(always_spaces, tokenizer=tokenizer, eos_ids=tokenizer.eos_ids))
    messages = [{"role": "user", "content": "x"}]
    assert llm.chat(messages, max_tokens=3).text == "  "
    for reply in (llm.chat(messages, regex=" {3}"), llm.generate([1], regex=" {3}")):
        assert reply.text == "   "
    with llm.session() as session:
        assert session.send("x", regex=" {2}").result().text == "  "
        assert session.send("y", max_tokens=2).result().text == " "


def test_mistakes_are_named_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executable = fakes.FakeExecutable()
    llm = LLM(fakes.fake_model(executable))
    with pytest.raises(SamplingError, match="regex is '\\(': unclosed group"):
        llm.generate("x", regex="(")
    with pytest.raises(SamplingError, match="json_schema and regex are both given"):
        llm.stream("x", regex="a", json_schema={})
    with pytest.raises(SamplingError, match="grammar allows no text of this model's tokens"):
        llm.generate_many(["x", "y"], [{}, {"grammar": "start: <[258]>"}])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="regex needs llguidance, which is not inst"):
        llm.chat([{"role": "user", "content": "x"}], regex="a")
    assert executable.rows == []


def test_a_model_has_no_say_in_what_replies_look_like(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recommended = {"regex": "x+", "json_schema": {}, "grammar": "(", "top_k": 7}
    name, data = "generation_config.json", json.dumps(recommended).encode()
    with edgerun.load(altered(resolve(None), tmp_path / "b", name, data)) as llm:
        assert dict(llm.model.sampling_defaults) == {"top_k": 7}
    assert caplog.messages == []
