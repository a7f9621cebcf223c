"""What may be set in a chat, how it is shown, and what may not be."""

from __future__ import annotations

from tests.cli.conftest import Run
from tests.cli.test_chat import talk
from tests.support import fakes


def test_what_is_told_beside_a_text_is_no_setting(run: Run) -> None:
    """A chat has no place for it."""
    shown = talk(["/set logprobs 3", "/set"], run).err
    assert "there is no setting 'logprobs'" in shown
    assert shown.count("logprobs") == 1
    refused = run("chat", "--logprobs", "3", stdin=b"")
    assert (refused.code, refused.out) == (2, "")
    assert "there is no option --logprobs" in refused.err


def shown(lines: list[str], run: Run) -> list[str]:
    """What a chat begun with ``-n 6`` says of settings, a space between words."""
    script = "\n".join(lines).encode()
    return [
        " ".join(line.split()) for line in run("chat", "-n", "6", stdin=script).err.splitlines()
    ]


def test_a_name_alone_shows_the_value_and_default_goes_back(run: Run) -> None:
    lines = ["/set max_tokens", "/set max_tokens=", "/set max_tokens default", "/set max_tokens"]
    assert shown(lines, run) == ["max_tokens 6"] * 2 + ["max_tokens none"] * 2
    lines = ["/set temperature 0.5", "/set temperature", "/set temperature default"]
    assert shown(lines, run) == ["temperature 0.5"] * 2 + ["temperature 0.0"]


def test_a_reply_that_the_limit_cuts_is_told(run: Run) -> None:
    """In a line of its own, shortly: the limit is the user's."""
    result = run("chat", "-n", "6", stdin=b"one\n/set max_tokens 1\ntwo\n")
    assert result.err.splitlines() == [
        "edgerun: the reply is cut after 6 tokens",
        "  max_tokens            1",
        "edgerun: the reply is cut after 1 token",
    ]
    assert [len(line) for line in result.out.splitlines()] == [6, 1]
    model = fakes.fake_model(fakes.FakeExecutable({40: fakes.END}))
    ended = run("chat", "-n", "99", stdin=b"one\n", model=model)
    assert (ended.code, ended.err) == (0, "")


def test_none_ends_what_can_be_none_and_is_no_value_of_what_cannot(run: Run) -> None:
    lines = ["/set seed 7", "/set seed none", "/set temperature 0.5", "/set temperature none"]
    lines += ["/set temperature", "/set dry_sequence_breakers none"]
    assert shown(lines, run) == [
        "seed 7",
        "seed none",
        "temperature 0.5",
        "edgerun: temperature cannot be none: /set temperature default sets it back",
        "temperature 0.5",
        "edgerun: dry_sequence_breakers cannot be none: /set dry_sequence_breakers default sets "
        "it back",
        "edgerun: 2 of the lines failed, see above",
    ]
