"""What replies of a chat look like is a setting."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.conftest import Run
from tests.cli.test_chat import talk


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
