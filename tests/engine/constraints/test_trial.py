"""Grammars that are wrong, and those that are meant to do harm, end in a sentence."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from edgerun.engine.chooser.params import SamplingParams
from edgerun.engine.constraints import trial
from edgerun.errors import MissingDependencyError, SamplingError
from edgerun.model.chat.template import ChatTemplate
from edgerun.model.sandbox.process import sandbox
from tests.engine.constraints import hostile
from tests.support import fakes


def refusal(**options: Any) -> str:
    with pytest.raises(SamplingError) as error:
        SamplingParams(**options).with_vocabulary(fakes.byte_tokenizer())
    message = str(error.value)
    assert "\n" not in message
    return message


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"regex": "("}, "regex is '(': unclosed group; expected a regular expression of Rust's"),
    ({"regex": "(?=a)"}, "look-around, including look-ahead and look-behind, is not supported"),
    ({"regex": r"\1"}, "backreferences are not supported"),
    ({"regex": r"\bx"}, r"regex is '\\bx': lookarounds not supported yet"),
    ({"regex": "\\"}, r"regex is '\\': incomplete escape sequence: it ends in a backslash"),
    ({"regex": "a\\\\\\"}, "incomplete escape sequence"),
    ({"regex": "x{2,1}"}, "the start must be <= the end"),
    ({"regex": "(" * 300 + ")" * 300}, "nested"),
    ({"regex": "a{0}"}, "regex is 'a{0}': no text but the empty one follows it"),
    ({"regex": r"[^\s\S]"}, "no text"),
    ({"json_schema": False}, "json_schema is 'false': Unsatisfiable schema: schema is false"),
    ({"json_schema": {"enum": []}}, "Unsatisfiable schema"),
    ({"json_schema": {"type": "strin"}}, "Invalid type: strin; expected a schema as docs/"),
    ({"json_schema": {"not": {}}}, 'Unimplemented keys: ["not"]'),
    ({"json_schema": {"$ref": "http://x/y"}}, "does not fetch resources"),
    ({"json_schema": {"$ref": "#"}}, "no text follows it"),
    ({"json_schema": {"const": "\ud800"}}, "unexpected end of hex escape"),
    ({"json_schema": {"x-guidance": {"foo": 1}}}, "unknown field `foo`"),
    ({"json_schema": {"x-guidance": 3}}, "invalid type: integer `3`"),
    ({"json_schema": {"pattern": "("}}, "unclosed group"),
    ({"grammar": "hello"}, "grammar is 'hello': line 1, column 6: Expected token ':'"),
    ({"grammar": "start: bar\n\nx: (("}, "line 3, column 6: Expected token ')'"),
    ({"grammar": "start: bar"}, 'line 1, column 8: unknown name: "bar"'),
    ({"grammar": "start: <thought>"}, 'line 1, column 8: unknown special token: "<thought>"; exp'),
    ({"grammar": "start: a\na[max_tokens=3]: /a+/"}, "rollback not supported with max_tokens"),
    ({"grammar": "root ::= foo"}, "grammar is 'root ::= foo': Rule 'foo' not found"),
    ({"grammar": "foo ::= [a-z"}, "grammar is 'foo ::= [a-z': "),
    ({"grammar": "root ::= root"}, "no text follows it"),
    ({"grammar": "\0"}, "grammar is '\\x00': "),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=lambda each: str(each)[:40])
def test_what_is_not_understood_is_named(options: dict[str, Any], words: str) -> None:
    message = refusal(**options)
    assert words in message
    assert "; expected a" in message


GBNF = [
    'root ::= ("yes" | "no") "!"?',
    'root ::= item+\nitem ::= "- " [^\\r\\n\\x0b]+ "\\n"',
    'root  ::= (expr "=" term "\\n")+\nexpr  ::= term ([-+*/] term)*\n'
    'term  ::= num | "(" expr ")"\nnum   ::= [0-9]{1,3} # a comment\n',
]


@pytest.mark.parametrize(
    "text",
    [*GBNF, 'start: "a" | B+\nB: /[b-z]/', 'start: "a" x\nx: x', '%llguidance {}\nstart: "a"'],
)
def test_grammars_of_either_form_are_understood(text: str) -> None:
    params = SamplingParams(grammar=text).with_vocabulary(fakes.byte_tokenizer())
    assert params.shapes_text


def test_what_was_tried_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = fakes.byte_tokenizer()
    SamplingParams(regex="[ab]c")
    monkeypatch.setattr(sandbox("grammars"), "ask", None)
    params = SamplingParams(regex="[ab]c").with_vocabulary(tokenizer)
    assert params.values()["regex"] == "[ab]c"


def test_whoever_has_no_llguidance_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.importlib.util, "find_spec", lambda name: None)
    for options in ({"regex": "a"}, {"grammar": 'start: "a"'}, {"json_schema": True}):
        with pytest.raises(MissingDependencyError) as error:
            SamplingParams(**options)  # type: ignore[arg-type]
        (name,) = options
        assert str(error.value) == (
            f"{name} needs llguidance, which is not installed: pip install 'edgerun[structured]'"
        )
    assert SamplingParams(temperature=1).values()["regex"] is None


def test_the_sandbox_dies_and_the_next_grammar_is_tried_in_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = refusal(json_schema=hostile.references(1500))  # twice as many would die here
    assert "it needs more time or memory (0.707 s or 76 MB) than is allowed; expected" in message
    assert SamplingParams(regex="[ab]d").values()["regex"] == "[ab]d"


def test_a_short_text_gets_little_time_and_memory() -> None:
    """Or a few words would keep others waiting for as long as a schema of 1 MB may."""
    message = refusal(json_schema={"type": "integer", "multipleOf": 262_139})  # 1.5 s, 270 MB
    assert "it needs more time or memory (0.5 s or 64 MB) than is allowed" in message


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no such signal on this system")
def test_chats_do_not_wait_for_grammars() -> None:
    SamplingParams(regex="[ab]e")
    process = sandbox("grammars")._process
    assert process is not None
    trying = threading.Thread(target=SamplingParams, kwargs={"regex": "[ab]f"})
    os.kill(process.pid, signal.SIGSTOP)
    try:
        trying.start()
        rendered = ChatTemplate("{{ messages | length }}").render([{"role": "user", "content": ""}])
        assert (rendered, trying.is_alive()) == ("1", True)
    finally:
        os.kill(process.pid, signal.SIGCONT)
        trying.join()


def test_a_trial_has_half_of_the_stack_that_threads_have(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, expected in (
        (8 << 20, 4 << 20),
        (64 << 20, 4 << 20),
        (1_000_000, 122 * 4096),
        (resource.RLIM_INFINITY, 1 << 20),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda which, limit=limit: (limit, limit))
        assert trial.stack_bytes() == expected
    monkeypatch.setitem(sys.modules, "resource", None)
    assert trial.stack_bytes() == 1 << 19


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_panic_in_the_sandbox_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicError(BaseException):
        """As those of Rust, which are no exceptions of Python's."""

    def tried(request: Any, text: str) -> Any:
        raise PanicError

    monkeypatch.setattr(trial, "_tried", tried)
    size = threading.stack_size()
    try:
        assert trial.answer({"name": "regex"}, b"a") == {"error": "llguidance fails on it"}
    finally:
        threading.stack_size(size)


def outcome_of(name: str, seconds: int) -> dict[str, Any]:
    """What becomes of a hostile grammar in a process of its own with 2 GB of address space."""
    command = [sys.executable, "-m", "tests.engine.constraints.hostile", name]
    done = subprocess.run(command, capture_output=True, timeout=seconds, check=True)
    outcome: dict[str, Any] = json.loads(done.stdout)
    assert done.stderr == b""
    return outcome


QUICK = ("refs", "lark_chain", "rx_rep", "props_1000")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in hostile.GRAMMARS
    ],
)
def test_hostile_grammars_end_under_limits(name: str) -> None:
    """They are refused, or replies follow them; either takes seconds, and memory that there is."""
    outcome = outcome_of(name, 120)
    assert outcome["refusal"] or outcome["tokens"] or outcome["error"]
    assert outcome["seconds"] < 60
    assert outcome["mask_s"] < 2
    assert outcome["megabytes"] < 1000
    if outcome["refusal"]:
        assert "; expected a" in outcome["refusal"]
