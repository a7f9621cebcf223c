"""Sessions whose replies call functions: gone on with, saved, loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgerun.errors import InputError, SessionError
from edgerun.llm.llm import LLM
from tests.llm.chats.test_tools import CALL, CHOSEN, HERMES, TOOLS, calls_of, hermes_that_says
from tests.model.chat.tools.replies import MESSAGES
from tests.support import fakes


def test_a_session_calls_and_goes_on_with_results(tmp_path: Path) -> None:
    with hermes_that_says(f"Let me see.\n{CALL}") as llm:
        session = llm.session(tools=TOOLS)
        reply = session.send(MESSAGES[0]["content"]).result()
        assert calls_of(reply) == [("get_weather", {"city": "Paris"})]
        assert session.messages == [*MESSAGES, reply.message]
        for results, message in (
            ([], "0 results, and the last reply called 1 functions"),
            (["a", "b"], "2 results"),
            ("12", "a list of texts"),
            ([5], "result 0 is 5"),
        ):
            with pytest.raises(InputError, match=message):
                session.send_results(results)
        session.save(tmp_path / "chat")
        other = llm.session(tools=TOOLS)
        other.load(tmp_path / "chat")
        said = [each.send_results(["12 °C"], max_tokens=9).result() for each in (session, other)]
        result = {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "name": "get_weather"}
        messages = [*MESSAGES, reply.message, {**result, "content": "12 °C"}]
        alone = llm.chat(messages, tools=TOOLS, max_tokens=9)
        assert [each.ids for each in said] == [alone.ids] * 2
        assert session.messages == other.messages == [*messages, alone.message]
        for results in (["x"], []):
            with pytest.raises(InputError, match="the last reply called 0 functions"):
                session.send_results(results)
        for calls in (5, [5], [{"id": "1"}], [{"function": {"name": "f"}}]):
            other.messages = [{"role": "assistant", "content": "", "tool_calls": calls}]
            with pytest.raises(InputError, match="calls"):
                other.send_results(["x"])
        assert session.send("And now?", max_tokens=3).result().ids


def test_a_session_may_force_a_call_and_is_told_what_is_wrong_with_its_tools() -> None:
    with LLM(fakes.fake_model(template=HERMES, context=4096)) as llm:
        for tools, values in (("x", None), ([{}], None), (None, {"colour": 1})):
            with pytest.raises(InputError):
                llm.session(tools=tools, template_values=values)  # type: ignore[arg-type]
        pytest.importorskip("llguidance")
        session = llm.session(tools=TOOLS)
        reply = session.send("hi", tool_choice=CHOSEN, max_tokens=200).result()
        assert [call.name for call in reply.tool_calls] == ["get_weather"]


def test_messages_of_other_programs_are_saved_too(tmp_path: Path) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    with LLM(fakes.fake_model(template=HERMES)) as llm:
        session, other = llm.session(), llm.session()
        session.messages = [
            {"role": "assistant", "content": None, "reasoning": "Hm.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "1", "content": "x"},
            {"role": "assistant", "content": "Hi.", "thinking": "So."},
        ]
        session.save(tmp_path / "chat")
        other.load(tmp_path / "chat")
        assert other.messages == [session.messages[0] | {"content": ""}, *session.messages[1:]]


@pytest.mark.parametrize(
    "calls",
    [
        5,
        [5],
        [{}],
        [{"id": "1", "type": "tool", "function": {"name": "f", "arguments": "{}"}}],
        [{"id": 1, "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}],
        [{"id": "1", "type": "function", "function": {"name": "f"}}],
        [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}, "x": 1}],
    ],
)
def test_a_saved_session_has_calls_of_one_shape(tmp_path: Path, calls: Any) -> None:
    with LLM(fakes.fake_model(template=HERMES)) as llm:
        session = llm.session()
        session.messages = [{"role": "assistant", "content": "x", "tool_calls": calls}]
        with pytest.raises(SessionError, match="message 0 cannot be saved"):
            session.save(tmp_path / "chat")
        assert not list(tmp_path.iterdir())
