"""Answers of helpers that are not ours end a command; they are no defect of the tool."""

import json
import sys
from pathlib import Path

import pytest

from tests.hw.deploy.harness import package

HELLO = {
    "ok": True,
    "board": "kv260",
    "model": "a board",
    "compatible": ["x"],
    "loader": "xmutil",
    "state": "operating",
    "needs_signature": False,
    "trusts_keys": False,
}
STATUS = {
    **dict.fromkeys(("running", "active", "previous", "since", "signature", "interrupted")),
    **dict.fromkeys(("damaged", "applications", "overlays"), ()),
    **dict.fromkeys(("locked_by", "registers")),
    **{"ok": True, "state": "operating", "loader": "xmutil"},
    **{"is_loaded": True, "is_intact": True},
}


def helper(place: Path, answers: dict[str, object]) -> str:
    """Command of a helper that answers with these, or with what is no more than agreement."""
    lines = {
        op: text if isinstance(text, str) else json.dumps(text) for op, text in answers.items()
    }
    (place / "helper.py").write_text(
        "import json, sys\n"
        f"answers = {lines!r}\n"
        "for line in sys.stdin:\n"
        """    print(answers.get(json.loads(line)["op"], '{"ok": true}'), flush=True)\n"""
    )
    return f"{sys.executable} {place / 'helper.py'}"


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"hello": '{"ok": true, "board": ' + "[" * 200_000 + "}"},
        {"hello": HELLO | {"compatible": "x", "board": None}},
        {"hello": HELLO | {"model": 5}},
        {"hello": HELLO},
        {"hello": HELLO, "status": STATUS | {"active": {"name": 5}}},
        {"hello": HELLO, "status": STATUS | {"active": {"name": "x", "digest": ["y"]}}},
        {"hello": HELLO, "status": STATUS | {"since": 10**30}},
        {"hello": HELLO, "status": STATUS | {"applications": [1]}},
        {"hello": HELLO, "status": STATUS | {"registers": {"id": "1", "version": 1}}},
        {"hello": HELLO, "status": STATUS | {"interrupted": {"kind": "deploy"}}},
    ],
)
def test_answers_that_no_helper_of_ours_gives_are_the_boards_failure(
    run, place: Path, answers: dict[str, object]
) -> None:
    code, out, err = run("status", "--broker", helper(place, answers))
    assert (code, out) == (1, "") and "defect" not in err
    assert "install the helper again" in err or "which the helper never says" in err
    package(run, "one")
    code, _, err = run("deploy", "one", "--broker", helper(place, answers))
    assert code == 1 and "defect" not in err


def test_status_of_a_helper_that_answers_as_ours_does_is_shown(run, place: Path) -> None:
    code, out, _ = run("status", "--broker", helper(place, {"hello": HELLO, "status": STATUS}))
    assert code == 0 and "a board" in out


def test_deployment_whose_answers_are_not_understood_fails(run, place: Path) -> None:
    package(run, "one")
    code, _, err = run("deploy", "one", "--force", "--broker", helper(place, {"hello": HELLO}))
    assert code == 1 and "answers begin otherwise" in err and "defect" not in err


def test_helpers_command_is_not_blank(run) -> None:
    for more in ((), ("--host", "me@board")):
        code, _, err = run("status", "--broker", " ", *more)
        assert code == 2 and "--broker names no command" in err
