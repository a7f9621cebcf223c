"""Several prompts at a time, on the fake model of ``tests/support/fakes.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgerun.engine.chooser.processor import StatelessProcessor
from edgerun.errors import BackendError, InputError, PromptError, SamplingError
from edgerun.llm.llm import LLM
from edgerun.model.chat.template import RENDERER
from edgerun.model.sandbox.process import Sandbox
from edgerun.model.text.sandboxed_library import LIBRARY
from tests.llm.test_llm import Broken, model
from tests.support import fakes


@pytest.mark.parametrize("max_sessions", [1, 3])
def test_many_prompts_are_continued_as_if_alone(max_sessions: int) -> None:
    options = {"max_tokens": 12, "temperature": 0, "stop": "e"}
    prompts = ["once", [111, 110, 99, 102], "once upon", "", "x"]
    with model(max_sessions=max_sessions) as llm:
        with pytest.raises(PromptError, match="empty"):
            llm.generate_many(prompts, **options)
        del prompts[3]
        completions = llm.generate_many(prompts, **options)
        assert [completion.prompt_tokens for completion in completions] == [5, 4, 10, 2]
        for prompt, completion in zip(prompts, completions, strict=True):
            expected = llm.generate(prompt, **options)
            assert (completion.text, completion.ids, completion.finish_reason) == (
                expected.text,
                expected.ids,
                expected.finish_reason,
            )
        assert llm.generate_many([]) == []


def test_a_prompt_of_many_that_cannot_fit_is_refused_before_any_is_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = model()
    llm.tokenizer.fewest_tokens("a")  # asks how tokens are spelled
    requests = count_requests(monkeypatch)
    with pytest.raises(PromptError, match="bytes, which are at least .* tokens, and the context"):
        llm.generate_many(["a", "b" * 100_000])
    assert requests == []


def test_many_prompts_that_are_interrupted_give_their_sequences_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: Any) -> str:
        raise KeyboardInterrupt

    llm = model(max_sessions=3)
    monkeypatch.setattr("edgerun.llm.opening.Writer.push", interrupted)
    with pytest.raises(KeyboardInterrupt) as excinfo:  # as a notebook keeps the last traceback
        llm.generate_many(["a", "b"])
    assert excinfo.tb is not None
    assert llm._engine.room().slots == 3


def test_nan_logits_of_one_of_many_end_that_one_alone() -> None:
    llm = LLM(fakes.fake_model(Broken("!")))
    good, bad, other = llm.generate_many(["one", "two!", "three"], max_tokens=5)
    assert (bad.finish_reason, bad.text) == ("error", "")
    assert isinstance(bad.error, BackendError)
    assert [good.ids, other.ids] == [
        model().generate(x, max_tokens=5).ids for x in ("one", "three")
    ]
    assert good.error is None


class Faulty(StatelessProcessor):
    """Fails with its third token, as it learns of it or when it is asked whether it is the last."""

    order = 99
    is_active = True

    def __init__(self, where: str) -> None:
        object.__setattr__(self, "where", where)
        object.__setattr__(self, "left", [3])

    def apply(self, candidates: Any) -> Any:
        return candidates

    def accept(self, id_: int) -> None:
        self.left[0] -= 1
        1 / (self.where != "accept" or self.left[0] > 0)

    def end_with(self, stop_ids: Any) -> None:
        pass

    def is_complete(self) -> bool:
        return not 1 / (self.where != "is_complete" or self.left[0] > 0)


@pytest.mark.parametrize("where", ["accept", "is_complete"])
def test_a_defect_of_one_processor_ends_its_own_reply_alone(where: str) -> None:
    llm = model()
    streams = [
        llm.stream("one", max_tokens=8),
        llm.stream("two", max_tokens=8, processors=[Faulty(where)]),
    ]
    replies = ["", ""]
    for index, piece in llm.together(streams):
        replies[index] += piece
    good, bad = (stream.completion for stream in streams)
    assert replies[0] == good.text == llm.generate("one", max_tokens=8).text
    assert (bad.finish_reason, len(replies[1])) == ("error", 2)
    assert "ZeroDivisionError" in repr(bad.error) + str(bad.error)


def test_ctrl_c_beside_a_defect_does_not_meet_the_defect_again() -> None:
    class Interrupted(Faulty):
        def accept(self, id_: int) -> None:
            self.left[0] -= 1
            if not self.left[0]:
                raise KeyboardInterrupt

    llm = model()
    with pytest.raises(KeyboardInterrupt):
        streams = [
            llm.stream("a", processors=[each]) for each in (Faulty("accept"), Interrupted(""))
        ]
        list(llm.together(streams))
    assert llm.generate("one", max_tokens=8).text == model().generate("one", max_tokens=8).text


def test_each_of_many_has_its_own_options() -> None:
    llm = model()
    options: list[Any] = [{"max_tokens": 3}, {}, {"stop": "e", "temperature": 1.5, "seed": 2}]
    replies = llm.generate_many(["a", "b", "c"], options, max_tokens=7)
    alone = [
        llm.generate(prompt, **{"max_tokens": 7, **each})
        for prompt, each in zip("abc", options, strict=True)
    ]
    assert [reply.ids for reply in replies] == [reply.ids for reply in alone]
    assert [len(reply.ids) for reply in replies[:2]] == [3, 7]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ([{}], InputError, "1 options for 2 prompts; expected one for each"),
        ([{}, None], InputError, "expected a list of dictionaries of sampling parameters"),
        ({"seed": 1}, InputError, "expected a list of dictionaries"),
        ([{1: 2}, {}], InputError, "expected a list of dictionaries"),
        ([{}, {"temprature": 1}], SamplingError, "did you mean 'temperature'"),
    ],
)
def test_options_that_do_not_suit_the_prompts_are_refused(
    options: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        model().generate_many(["a", "b"], options)


def count_requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fills a list with the modules that the sandbox is asked from now on."""
    modules: list[str] = []
    ask = Sandbox.ask

    def counted(self: Sandbox, module: str, *request: Any, **limits: Any) -> dict[str, Any]:
        modules.append(module)
        return ask(self, module, *request, **limits)

    monkeypatch.setattr(Sandbox, "ask", counted)
    return modules


def test_many_conversations_are_answered_as_if_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And encoded by a request for all of them."""
    llm = model()
    conversations: list[Any] = [
        [{"role": "user", "content": text}] for text in ("hi", "who are you?")
    ]
    conversations *= 5
    llm.chat(conversations[0], max_tokens=6)  # asks how tokens are spelled
    requests = count_requests(monkeypatch)
    replies = llm.chat_many(conversations, max_tokens=6)
    assert requests == [RENDERER, LIBRARY]
    requests.clear()
    assert len(llm.generate_many([[7], *"abcde"], max_tokens=1)) == 6
    assert requests == [LIBRARY]
    assert [reply.ids for reply in replies] == [
        llm.chat(messages, max_tokens=6).ids for messages in conversations
    ]
    with pytest.raises(PromptError, match="messages is 'hi'; expected a list such as"):
        llm.chat_many(["hi"])  # type: ignore[list-item]


def test_streams_of_all_kinds_run_together_and_share_calls() -> None:
    executable = fakes.FakeExecutable()
    llm = LLM(fakes.fake_model(executable))
    chat = llm.session()
    asked = [{"role": "user", "content": "hi"}]
    texts = [llm.generate("a", max_tokens=6).text, llm.chat(asked, max_tokens=6).text]
    executable.rows.clear()
    streams = [
        llm.stream("a", max_tokens=6),
        llm.stream_chat(asked, max_tokens=6),
        chat.send("hi", max_tokens=6),
    ]
    replies = ["", "", ""]
    for index, piece in llm.together(streams):
        replies[index] += piece
    assert replies == [*texts, texts[1]]
    assert executable.rows.count(3) >= 3
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]


def test_streams_that_are_no_more_read_together_end() -> None:
    llm = model()
    streams = [llm.stream(prompt) for prompt in "abc"]
    pieces = llm.together(streams)
    index, piece = next(pieces)
    assert streams[index].completion.text == piece
    pieces.close()
    assert [stream.completion.finish_reason for stream in streams] == ["cancelled"] * 3
    assert llm._engine.room().slots == 4
    assert list(llm.together(streams)) == []
    with pytest.raises(InputError, match="a stream is another model's"):
        llm.together([model().stream("a")])


@pytest.mark.parametrize("streams", ["abc", None, [None], 3, np.array(3)])
def test_what_is_no_stream_is_not_run(streams: Any) -> None:
    with pytest.raises(InputError, match="expected (a list of )?what 'stream' returns"):
        model().together(streams)


def test_a_stream_is_no_list_of_streams() -> None:
    llm = model()
    stream = llm.stream("a", max_tokens=3)
    with pytest.raises(InputError, match="expected a list of what 'stream' returns"):
        llm.together(stream)
    assert stream.result().ids == llm.generate("a", max_tokens=3).ids


def test_streams_are_closed_by_who_reads_nothing_of_them() -> None:
    llm = model()
    streams = [llm.stream(prompt) for prompt in "ab"]
    llm.together(streams).close()
    assert [stream.completion.finish_reason for stream in streams] == ["cancelled"] * 2
    assert llm._engine.room().slots == 4
