"""Places on the command line, from the option to the reply."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from edgerun.cli.main import main

pytest.importorskip("openvino")

PROMPT = "Once there was a little dog who lived in a small house near the forest. One day he went"
DEVICE = "openvino:NPUW-CPU"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(arguments)
    return code, *capsys.readouterr()


def test_a_prompt_goes_where_it_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("run", "-p", PROMPT, "--raw", "--temperature", "0", "-n", "12", "--json")
    plain = json.loads(shown(capsys, *asked)[1])
    code, out, err = shown(capsys, *asked, "--place", f"prefill={DEVICE}", "--require", DEVICE)
    reply = json.loads(out)
    assert (code, reply["ids"]) == (0, plain["ids"])
    assert err == f"edgerun: compiling for {DEVICE}: 64 rows after up to 256 tokens\n"
    (device,) = reply["devices"]
    assert device["title"].startswith(
        f"{DEVICE}, the NPU's partitioner with the processor in place"
    )
    assert [row["tokens"] for row in device["rows"]] == [reply["prompt_tokens"] - 1]


def test_a_plan_shows_places(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = shown(capsys, "plan", "--place", f"prefill={DEVICE}", "--json")
    chosen = {row["phase"]: row["backend"] for row in json.loads(out)["placements"]}
    assert code == 0
    assert chosen == {"prompts": DEVICE, "prefill": "cpu", "few": "cpu", "decode": "cpu"}


def test_a_plan_shows_what_weights_take_in_each_place(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = shown(capsys, "plan", "--place", f"prefill={DEVICE}", "--explain")
    assert code == 0
    lines = dict(
        line.split(maxsplit=1) for line in out.partition("weights in memory\n")[2].splitlines()
    )
    assert list(lines) == ["cpu", DEVICE] or list(lines) == [DEVICE, "cpu"]
    assert lines["cpu"].endswith(" MB, ternary ones as two_bits") and lines[DEVICE].endswith(" MB")


def test_validation_looks_at_every_node(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from edgerun.plan import programs

    changed = replace(programs.settings(), validate=True)
    monkeypatch.setattr(programs, "settings", lambda: changed)
    code, out, err = shown(
        capsys, "run", "-p", PROMPT, "--raw", "--temperature", "0", "-n", "2", "--json",
        "--place", "prefill=openvino:CPU",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["devices"][0]["rows"][0]["calls"] == 1


def test_a_chat_changes_its_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        f"/place prefill={DEVICE}",
        PROMPT,
        "/place prefill=openvino:AUTO",
        "/place decode=cpu",
    ]
    script = "\n".join(["/place", *lines, "and"]).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(script), "utf-8"))
    code, out, err = shown(capsys, "chat", "-n", "6", "--temperature", "0")
    told = [line for line in err.splitlines() if "computed by" in line]
    assert len(out.splitlines()) == 2, err
    split = f"prompts are computed by {DEVICE}, replies by cpu"
    assert told == ["computed by cpu", split, "computed by cpu"]
    assert "without a word" in err and "1 of the lines failed" in err
    assert code == 2, err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--place", "prefill"), "the places 'prefill' are not understood"),
        (("--place", "prefill=openvino:TPU"), "has no device 'TPU'; there are CPU, GPU"),
        (("--place", "decode=cpu", "--backend", "cpu"), "leave one out"),
        (("--place", "decode=cpu", "--require", DEVICE), "is required and takes no part"),
        (("--backend", "openvino"), "no device was named: --device CPU, GPU, NPU, NPUW-CPU"),
    ],
)
def test_places_that_cannot_be_are_one_line(
    arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = shown(capsys, "run", "-p", "hi", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and line in err
