"""What a chat says of its context: how full it is, what does not fit, and what makes room."""

from __future__ import annotations

import re

import pytest

from edgerun.cli.conversation.state import Conversation
from edgerun.errors import PromptError
from edgerun.llm.llm import LLM
from tests.cli.conftest import Run
from tests.cli.test_chat import talk
from tests.support import fakes

SAYS_ALONE = r"this message alone has \d+ tokens, and the context holds 64, one of which"


def test_the_counter_ends_where_the_context_does(run: Run) -> None:
    """A reply that was cut has an end to come and another beginning, for which there is no room."""
    result = run("chat", stdin=b"x\n/show\n/undo\n", model=fakes.fake_model(context=64))
    assert result.err.splitlines()[-2] == "64/64 tokens"
    assert "(0/64 tokens)" in result.err


def test_a_chat_longer_than_the_context_says_how_long_it_is(run: Run) -> None:
    whole = talk(["one", "two", "three", "/show"], run, "--continue", context=128).err
    tokens = re.findall(r"(\d+)/128 tokens", whole)[-1]
    shown = talk(["/show"], run, "--continue", context=64).err
    assert int(tokens) > 64
    assert f"({tokens}/64 tokens)" in shown


@pytest.mark.parametrize("before", [[], ["one"]])
@pytest.mark.parametrize("when_full", ["stop", "drop-oldest"])
def test_a_message_that_nothing_makes_room_for_says_so(
    run: Run, before: list[str], when_full: str
) -> None:
    lines = [*before, "y" * 100, "/show"]
    shown = talk(lines, run, "--when-full", when_full, context=64).err
    assert re.search(rf"edgerun: {SAYS_ALONE} must stay free: shorten it\n", shown)
    assert "/undo" not in shown
    assert "load the model" not in shown
    assert shown.count("> one") == len(before)


def test_the_tokens_of_a_long_message_are_counted_and_not_bounded(run: Run) -> None:
    llm = LLM(fakes.fake_model(context=64))
    conversation = Conversation(llm, {})
    bound = llm.tokenizer.fewest_tokens("<think>" * 100)
    with pytest.raises(PromptError, match=r"has 700 tokens, and the context holds 64"):
        conversation.answer("<think>" * 100)
    assert bound < 700
    llm.close()


def test_the_system_message_counts(run: Run) -> None:
    shown = talk([f"/system {'s' * 30}", "y" * 30], run, context=64).err
    assert "this message and the system's have" in shown
    assert "shorten one of them" in shown


def test_the_ways_out_are_told_at_length_once(run: Run) -> None:
    result = talk(["one", "y" * 40, "y" * 40, "y" * 40], run, context=64)
    refusals = [line for line in result.err.splitlines() if "tokens, and the context is" in line]
    assert len(refusals) == 3
    assert refusals[0].endswith("--when-full drop-oldest` drops by itself")
    assert all(
        line.endswith("is 64: /undo, /forget N or /clear makes room") for line in refusals[1:]
    )
