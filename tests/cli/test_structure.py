"""Structured output on the command line: flags of ``edgerun run``, settings of a chat."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli.conftest import Run
from tests.cli.test_chat import talk
from tests.cli.test_run import saying


def test_replies_follow_a_schema_a_regular_expression_or_a_grammar(
    run: Run, tmp_path: Path
) -> None:
    """The model says something else, of which the reply has what is allowed."""
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.gbnf"
    schema.write_text('{"const": {"a": ["hello", 1]}}')
    grammar.write_text('root ::= "h" [a-f] "llo" "!"?')
    arguments = ["run", "-p", "hi", "--temperature", "0"]
    for more, text in (
        (["--json-schema", str(schema)], '{"a":["hello",1]}\n'),
        (["--json-schema", '{"enum": ["x", "hello"]}', "--json"], '"hello"'),
        (["--regex", "[hx]el+o"], "hello\n"),
        (["--grammar", str(grammar)], "hello\n"),
    ):
        result = run(*arguments, *more, model=saying("hello" if "--json" not in more else '"hello'))
        assert result.code == 0, result.err
        out = json.loads(result.out)["text"] if "--json" in more else result.out
        assert (out, result.err) == (text, "")


def test_what_replies_look_like_may_be_set(run: Run, tmp_path: Path) -> None:
    grammar = tmp_path / "g.lark"
    grammar.write_text('start: "yes" | "no"')
    lines = ["/set regex [ab]{3}", "one", '/set json_schema {"const": 7}', "/set regex none"]
    lines += ['/set json_schema {"const": 7}', "two", "/set json_schema none"]
    lines += [f"/set grammar {grammar}", "three", "/set grammar (", "/set grammar none", "four"]
    result = talk([*lines, "/set regex ("], run)
    replies = result.out.splitlines()
    assert re.fullmatch("[ab]{3}", replies[0])
    assert replies[1] == "7"
    assert replies[2] in ("yes", "no")
    assert len(replies[3]) == 4
    assert "regex [ab]{3}" in " ".join(result.err.split())
    for words in (
        "json_schema and regex are both given: leave one out",
        "'(' cannot be read: No such file or directory",
        "regex is '(': unclosed group",
    ):
        assert words in result.err
