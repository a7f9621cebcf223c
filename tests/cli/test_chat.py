"""``edgerun chat`` through a pipe and at a terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from edgerun.cli.chat import greet
from edgerun.cli.conversation import reader
from edgerun.cli.conversation.commands import ALIASES, COMMANDS
from edgerun.cli.conversation.state import Conversation
from edgerun.errors import SamplingError
from edgerun.llm.llm import LLM
from tests.cli.conftest import Result, Run
from tests.cli.conversation.terminal import READY, STREAMING, Terminal
from tests.support import fakes


def test_every_line_of_a_pipe_is_answered(run: Run) -> None:
    result = run("chat", "-n", "4", stdin=b"hello\n\nagain\n")
    assert result.code == 0
    assert [len(line) for line in result.out.splitlines()] == [4, 4]


def test_a_message_without_a_reply_is_an_error_at_the_end_of_a_pipe(run: Run) -> None:
    result = run("chat", "-n", "4", stdin=b"x" * 600 + b"\nhello\n")
    assert result.code == 2
    assert [len(line) for line in result.out.splitlines()] == [4]
    assert "tokens, and the context holds 512" in result.err
    assert result.err.splitlines()[-1].endswith("1 of the lines failed, see above")


def test_ctrl_c_between_the_lines_of_a_pipe_ends_the_chat(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[type[BaseException]] = [KeyboardInterrupt, EOFError]

    def read(lines: object) -> str:
        raise events.pop(0)

    monkeypatch.setattr(reader, "read_message", read)
    assert run("chat").code == 130


def test_a_backslash_goes_on_in_the_next_line() -> None:
    lines = io.StringIO("one\\\ntwo\nthree")
    assert [reader.read_message(lines) for _ in range(2)] == ["one\ntwo", "three"]
    with pytest.raises(EOFError):
        reader.read_message(lines)


def test_three_quotes_surround_a_block() -> None:
    lines = io.StringIO('"""one\n\ntwo\\\n"""\n"""three""" four\nfive\n"""open')
    messages = [reader.read_message(lines) for _ in range(4)]
    assert [reader.unquoted(text) for text in messages] == [
        "one\n\ntwo\\",
        "three four",
        "five",
        "open",
    ]


def test_a_block_may_begin_with_a_slash(run: Run) -> None:
    result = run("chat", "-n", "2", stdin=b'"""/help\n"""\n/show\n')
    assert (result.code, len(result.out)) == (0, 3)
    assert "> /help\n" in result.err


def test_commands_answer_on_stderr(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "saved"
    script = [
        "/?",
        "/system be kind",
        "/set temperature 0.5",
        "/set temperature hot",
        "/set temprature 1",
        "/set top_p 7",
        "/set",
        "/sav",
        "/stats",
        "/copy",
        "/undo",
        "/history",
        "hello",
        "/stats",
        f"/save {file}",
        "/save",
        "/clear",
        f"/load {file}",
        f"/load {tmp_path}",
        "/bye",
        "never read",
    ]
    result = run("chat", "-n", "3", stdin="\n".join(script).encode())
    assert (result.code, len(result.out)) == (2, 4)
    for words in (
        "/quit, /bye, /exit, /q Ends the chat.",
        "system message: be kind",
        "temperature           0.5",
        "temperature is 'hot'; expected a number",
        "did you mean 'temperature'?",
        "top_p is 7.0",
        "did you mean /save?",
        "there is no reply yet",
        "nothing to take back",
        "nothing of this chat is kept",
        "first token",
        "name a file",
        "cleared",
        "loaded 3 messages",
        "cannot read the session",
    ):
        assert words in result.err, words
    assert "Traceback" not in result.err


def test_a_chat_replaces_saved_chats_and_no_other_files(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "letter.txt").write_text("dear all")
    shown = talk(["hello", "/save ~/chat", "/save ~/chat", "/save ~/letter.txt"], run)
    assert shown.err.count("saved to ~/chat") == 2
    assert "~/letter.txt is there and is no saved chat: name another file" in shown.err
    assert (tmp_path / "letter.txt").read_text() == "dear all"
    assert "loaded 2 messages from ~/chat" in talk(["/load ~/chat"], run).err


def test_settings_are_shown_as_they_are_typed(run: Run) -> None:
    script = ["/set stop the end", "/set logit_bias 3=-5,7=2.5", "/set stop_ids=5,7"]
    script += [
        f"/set dry_sequence_breakers {text}"
        for text in (r'["\n", "é"]', "[]", '["x y"]', "default")
    ]
    script += ["/set"]
    lines = talk(script, run).err.splitlines()
    settings = [" ".join(line.split()) for line in lines]
    assert settings[:3] == ["stop the end", "logit_bias 3=-5.0,7=2.5", "stop_ids 5,7"]
    breakers = [line.removeprefix("dry_sequence_breakers ") for line in settings[3:7]]
    assert breakers == [r'["\n", "é"]', "[]", '["x y"]', r'["\n", ":", "\"", "*"]']
    assert {"max_tokens 4", "seed none", "stop_ids 5,7", "ignore_eos off"} <= set(settings[7:])


def talk(lines: list[str], run: Run, *options: str, **model: Any) -> Result:
    """A chat of a line each; the fake model's tokens are bytes."""
    script = "\n".join(lines).encode()
    return run("chat", "-n", "4", *options, stdin=script, model=fakes.fake_model(**model))


def test_undo_and_forget_drop_whole_exchanges(run: Run) -> None:
    lines = ["/system be kind", "one", "two", "three", "/undo", "/forget 1", "/show"]
    shown = talk([*lines, "/forget 2", "/forget x", "/forget 1", "/forget 1"], run).err
    assert 'took back "three" and its reply' in shown
    assert "forgot 1 of 2 messages and replies" in shown
    assert "[system] be kind\n> two\n" in shown
    assert "> one" not in shown
    assert "cannot forget 2 messages: expected 1 to 1" in shown
    assert "cannot forget x messages: expected 1 to 1" in shown
    assert "cannot forget 1 messages: nothing was said yet" in shown


def test_retry_answers_the_same_message_anew(run: Run) -> None:
    result = talk(["hello", "/retry", "/show"], run)
    first, second = result.out.splitlines()
    assert first == second
    assert "the likeliest reply is the same each time" in result.err
    assert result.err.count("> hello") == 1
    varied = talk(["hello", "/retry"], run, "--temperature", "9", "--seed", "1")
    assert "the likeliest" not in varied.err


def test_a_retry_that_fails_leaves_the_reply(run: Run) -> None:
    result = talk(["hello", "/set stop x", "/retry", "/show"], run, context=64)
    assert result.err.count("> hello") == 1
    llm = LLM(fakes.fake_model())
    conversation = Conversation(llm, {"max_tokens": 2})
    conversation.answer("hello")
    before = list(conversation.session.messages)
    conversation.settings = {"max_tokens": 0}
    with pytest.raises(SamplingError):
        conversation.retry()
    assert conversation.session.messages == before
    llm.close()


def test_a_full_context_says_what_to_do(run: Run) -> None:
    model = fakes.fake_model(context=64)
    result = run("chat", model=model, stdin=b"x\nyyyy\n/clear\nz\n")
    assert "the context is full (64/64), so the reply ends here: /undo takes back" in result.err
    assert "tokens, and the context is 64: /undo, /forget N or /clear makes room" in result.err
    assert all(way in result.err for way in ("/forget N", "/clear", "--when-full drop-oldest"))
    assert len(result.out.splitlines()) == 2


def test_the_oldest_are_dropped_aloud_when_asked(run: Run) -> None:
    lines = [f"message {number}" for number in range(6)]
    stopped = talk(lines, run, context=128)
    assert (stopped.code, len(stopped.out.splitlines())) == (2, 3)
    result = talk([*lines, "/show"], run, "--when-full", "drop-oldest", context=128)
    assert (result.code, len(result.out.splitlines())) == (0, 6)
    dropped = result.err.count("the context is full: the oldest message and its reply were dropped")
    assert dropped == 6 - result.err.count("> message ") > 2
    assert "> message 5" in result.err
    assert "> message 0" not in result.err


def test_a_message_too_long_by_itself_drops_nothing(run: Run) -> None:
    lines = ["one", "y" * 200, "/show"]
    result = talk(lines, run, "--when-full", "drop-oldest", context=128)
    assert result.code == 2
    assert "dropped" not in result.err
    assert "> one\n" in result.err


def test_an_unknown_way_is_refused(run: Run) -> None:
    result = run("chat", "--when-full", "explode")
    assert (result.code, result.out) == (2, "")
    assert "--when-full is 'explode'; expected stop or drop-oldest" in result.err


def test_continue_goes_on_with_the_last_chat(run: Run, state: Path) -> None:
    first = talk(["hello"], run, "--continue")
    assert "no chat with this model to go on with" in first.err
    again = talk(["/show", "more"], run, "--continue")
    assert "going on with the last chat (" in again.err
    assert f"> hello\n{first.out}" in again.err
    assert "> more" in talk(["/show"], run, "--continue", "--system", "kind").err
    (chat,) = state.glob("*.chat")
    assert chat.stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700
    saved = chat.read_bytes()
    talk(["other"], run)  # from a pipe, without --continue
    assert chat.read_bytes() == saved


def test_history_off_says_that_what_is_there_stays(run: Run, state: Path) -> None:
    shown = talk(["hello", "/history off", "/history clear"], run, "--continue").err
    stays = f"nothing more is kept; what is in {state} stays until /history clear"
    assert stays in shown and f"nothing is kept in {state}" in shown


def test_history_off_keeps_nothing_more(run: Run, state: Path) -> None:
    lines = ["/history", "/history off", "hello", "/history clear", "/history maybe"]
    shown = talk(lines, run, "--continue").err
    assert f"messages and the last chat are kept in {state}" in shown
    assert f"nothing is kept in {state}" in shown
    assert "deleted 0 files" in shown
    assert "/history maybe: expected on, off or clear" in shown
    assert not list(state.glob("*.chat"))
    talk(["/history on", "hello"], run, "--continue")
    assert len(list(state.glob("*.chat"))) == 1
    assert "deleted 1 file\n" in talk(["/history clear"], run, "--continue").err


def test_a_state_that_cannot_be_written_ends_keeping_and_not_the_chat(
    run: Run, state: Path
) -> None:
    state.write_text("a file where the folder should be")
    result = talk(["hello", "again"], run, "--continue")
    assert (result.code, len(result.out.splitlines())) == (0, 2)
    assert result.err.count("this chat is not kept for --continue: cannot make") == 1


def test_a_reply_is_copied_by_a_program_of_the_desktop(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "xsel"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/clipboard\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    result = talk(["hello", "/copy"], run)
    if "copied with xsel" in result.err:  # no better program is here
        assert (tmp_path / "clipboard").read_text() == result.out.removesuffix("\n")
    monkeypatch.setattr("edgerun.cli.conversation.clipboard.PROGRAMS", ())
    assert "there is no clipboard here" in talk(["hello", "/copy"], run).err


def test_commands_settings_and_files_are_completed(tmp_path: Path) -> None:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    (tmp_path / "story.chat").touch()
    completer = reader._completer()

    def completed(text: str) -> list[str]:
        return [each.text for each in completer.get_completions(Document(text), CompleteEvent())]

    assert completed("/un") == ["undo"]
    assert set(completed("/")) == {*COMMANDS, *ALIASES}
    assert completed("/set temp") == ["temperature"]
    assert completed("/set log") == ["logit_bias"]
    assert completed("/history o") == ["on", "off"]
    assert completed(f"/load {tmp_path}/sto") == ["ry.chat"]
    assert completed("un") == completed("/undo x") == completed("a\n/un") == []


def test_the_greeting_names_the_folder_in_which_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path / "my-model")
    with LLM(fakes.fake_model(path=Path())) as llm:
        greet(llm)
    assert capsys.readouterr().err.startswith("my-model: ")


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork beside threads
def test_a_terminal_that_can_only_print_gets_no_escapes(tmp_path: Path) -> None:
    terminal = Terminal(["chat", "-n", "3"], tmp_path, TERM="dumb")
    terminal.expect("> ")
    terminal.send("hello\r")
    terminal.expect("\r\n")
    terminal.expect("> ")
    assert "\x1b" not in terminal.seen
    terminal.send("\x04")
    assert terminal.wait() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork beside threads
def test_ctrl_c_stops_the_reply_and_keeps_the_chat(tmp_path: Path) -> None:
    terminal = Terminal(["chat"], tmp_path)
    terminal.expect("context 4096 tokens, 1 thread\r\n")
    terminal.expect(READY)
    terminal.expect("0/409")  # and the last column in a sequence of its own
    terminal.send("hello\r")
    terminal.expect(STREAMING)
    terminal.expect_more()
    terminal.send("\x03")
    terminal.expect("[stopped]")
    terminal.expect(READY)
    terminal.send("/set max_tokens 3\r")
    terminal.expect("  max_tokens  ")  # not what was typed
    terminal.expect(READY)
    terminal.send("one\x1b\rtwo\r")  # Alt-Enter
    terminal.expect(READY)
    terminal.send('"""three\rfour"""\r')
    terminal.expect(READY)
    terminal.send("/st\t")
    terminal.expect("/stats")
    terminal.send("\r")
    terminal.expect("first token")
    terminal.expect(READY)
    terminal.send("\x04")
    assert terminal.wait() == 0
    history = tmp_path / "chat_history"
    assert "+one\n+two\n" in history.read_text()
    assert '+"""three\n+four"""\n' in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600
    assert "\x1b[0;1m" in terminal.seen  # what is typed is bold
    (chat,) = tmp_path.glob("last-*.chat")
    assert b"three\\nfour" in chat.read_bytes()
