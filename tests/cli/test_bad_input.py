"""Every bad bundle, prompt and option, through the real command line.

Each is one line on stderr that names the value and says what to do, exit code 2 and nothing on
stdout; checkpoints and what cannot be written are in ``test_bad_export.py``.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgerun.cli import main as cli
from tests.cli.conftest import Shell, check_refusal
from tests.support.bundles import bundle_of


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle_of("llama"), tmp_path / "bundle"))


def ask(bundle: Path, *more: object) -> tuple[object, ...]:
    prompt = () if "-p" in more else ("-p", "hi")
    return ("run", bundle, *prompt, "--backend", "reference", *more)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def accept(folder: Path, name: str) -> None:
    """Makes the manifest agree with a file, as an attacker would."""
    data = (folder / name).read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def edit_model(folder: Path, change: Callable[[Any], None]) -> None:
    import onnx

    model = onnx.load(folder / "model.onnx", load_external_data=False)
    change(model)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    accept(folder, "model.onnx")


# Bundles.

NAMES = ("model.onnx", "model.onnx.data", "tokenizer.json", "config.json", "manifest.json")


@pytest.mark.parametrize("name", NAMES)
def test_a_truncated_file_of_a_bundle(shell: Shell, bundle: Path, name: str) -> None:
    cut(bundle / name)
    line = shell.refuses(*ask(bundle))
    assert str(bundle / name) in line
    assert "copy or export the model again" in line


@pytest.mark.parametrize("name", NAMES[:-1])
def test_a_flipped_bit_of_a_bundle(shell: Shell, bundle: Path, name: str) -> None:
    flip(bundle / name)
    line = shell.refuses(*ask(bundle))
    assert f"{name} does not match the digest in the manifest" in line


@pytest.mark.parametrize("name", NAMES[:-1])
def test_a_missing_file_of_a_bundle(shell: Shell, bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    assert f"{name} is missing" in shell.refuses(*ask(bundle))


def test_a_wrong_digest_in_the_manifest(shell: Shell, bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"]["model.onnx.data"]["sha256"] = "0" * 64
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    assert "model.onnx.data does not match the digest" in shell.refuses(*ask(bundle))


@pytest.mark.parametrize("command", ["run", "chat", "bench", "plan", "inspect"])
def test_a_model_that_is_no_bundle(shell: Shell, tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert "there is no model at" in shell.refuses(command, tmp_path / "missing", stdin=b"hi")
    for path in (tmp_path, tmp_path / "file"):
        line = shell.refuses(command, path, stdin=b"hi")
        assert f"{path} is no " in line
        assert "a checkpoint" in line


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "link"])
def test_external_data_outside_the_bundle(shell: Shell, bundle: Path, location: str) -> None:
    (bundle.parent / "secret").write_bytes(bytes(1 << 20))
    (bundle / "link").symlink_to(bundle.parent / "secret")

    def escape(model: Any) -> None:
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                entry.value = location if entry.key == "location" else entry.value

    edit_model(bundle, escape)
    assert location in shell.refuses(*ask(bundle))


def test_an_element_type_of_a_bundle_that_no_kernel_reads(shell: Shell, bundle: Path) -> None:
    def change(model: Any) -> None:
        model.graph.initializer[0].data_type = 16

    edit_model(bundle, change)
    line = shell.refuses(*ask(bundle))
    assert "has the element type bfloat16, supported are float32, uint8" in line


def test_a_bundle_of_a_newer_format(shell: Shell, bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps({**manifest, "format_version": 99}))
    line = shell.refuses(*ask(bundle))
    assert "bundle format 99, this version reads 1" in line


def test_a_tokenizer_of_another_model(shell: Shell, bundle: Path) -> None:
    file = bundle / "tokenizer.json"
    content = json.loads(file.read_text())
    first = content["added_tokens"][0]
    content["added_tokens"] += [
        {**first, "id": 264 + index, "content": f"<{index}>"} for index in range(9)
    ]
    file.write_text(json.dumps(content))
    accept(bundle, "tokenizer.json")
    line = shell.refuses(*ask(bundle))
    assert "tokens and the model 264: they do not belong together" in line


# Prompts and options.


def test_a_prompt_longer_than_the_context(shell: Shell, bundle: Path) -> None:
    line = shell.refuses(*ask(bundle, "-p", "x" * 128))
    assert "the prompt has 128 tokens and the context is 128" in line
    assert "shorten the prompt" in line


# The tokenizer takes a character each and puts one token before them.
@pytest.mark.parametrize(("context", "fits"), [(9, True), (8, False), (7, False)])
def test_a_prompt_around_the_end_of_the_context(
    shell: Shell, bundle: Path, capsys: pytest.CaptureFixture[str], context: int, fits: bool
) -> None:
    command = [str(argument) for argument in ask(bundle, "-p", "x" * 8, "--context", context)]
    if fits:
        assert cli.main(command) == 0
        assert "the reply ends here because the context is full" in capsys.readouterr().err
    else:
        line = shell.refuses(*command)
        assert f"the prompt has 8 tokens and the context is {context}, one of which must" in line


def test_a_context_of_one_token(
    shell: Shell, bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "the context is 1 token, which leaves no room for a prompt and a reply"
    assert words in shell.refuses(*ask(bundle, "--context", "1"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hi\n"), "utf-8"))
    cli.main(["chat", str(bundle), "--backend", "reference", "--context", "1"])
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        (b"", "the prompt is empty: give some text as an argument or through stdin"),
        (b"\n", "the prompt is empty"),
        (b"abc\xff", "stdin is not UTF-8 text (byte 3)"),
        (None, "there is no prompt: give one as in `edgerun run"),
    ],
)
def test_stdin_without_a_prompt(
    shell: Shell, bundle: Path, stdin: bytes | None, words: str
) -> None:
    assert words in shell.refuses("run", bundle, stdin=stdin)


OPTIONS = [
    (["-p", ""], "the prompt is empty"),
    (["-p", "caf\udce9"], "the prompt contains a surrogate code point"),  # Latin-1 as Python has it
    (["--temperature", "-1"], "temperature is -1.0; expected a number from 0 to 100"),
    (["--temperature", "nan"], "temperature is nan; expected"),
    (["--temperature", "inf"], "temperature is inf; expected"),
    (["--temperature", "1e9"], "temperature is 1000000000.0; expected"),
    (["--temperature", "hot"], "'hot'"),
    (["--top-p", "0"], "--top-p is 0.0; expected a number above 0 up to 1"),
    (["--top-p", "2"], "--top-p is 2.0; expected"),
    (["--min-p", "-0.1"], "--min-p is -0.1; expected"),
    (["--dry-multiplier", "-1"], "--dry-multiplier is -1.0; expected a number from 0 to 100"),
    (["--dry-base", "0.5"], "--dry-base is 0.5; expected a number from 1"),
    (
        ["--dry-sequence-breakers", "[1]"],
        "--dry-sequence-breakers is [1]; expected a list of texts",
    ),
    (["--top-k", "-1"], "--top-k is -1; expected"),
    (["--repetition-penalty", "0"], "--repetition-penalty is 0.0; expected"),
    (["-n", "0"], "-n is 0; expected a whole number from 1"),
    (["-n", "-5"], "-n is -5; expected"),
    (["-n", str(10**12)], f"-n is {10**12}; expected"),
    (["-n", "few"], "'few'"),
    (["--seed", "-1"], "seed is -1; expected a whole number from 0"),
    (["--seed", str(2**64)], f"seed is {2**64}; expected"),
    (["--threads", "0"], "--threads is 0; expected a whole number from 1 to 1024"),
    (["--threads", "9999"], "--threads is 9999; expected"),
    (["--threads", "-1"], "--threads is -1; expected"),
    (["--threads", "1000"], "--threads is 1000, but this process may use only"),
    (["--context", "0"], "--context is 0; expected"),
    (["--context", "4096"], "--context is 4096; this model was made for at most 128"),
    (["--kv-cache", "int3"], "--kv-cache is 'int3'; expected one of fp16, fp32, int4, int8"),
    (["--backend", "tpu"], "no back-end is called 'tpu': there are cpu, "),
    (["--backend", "openvino:CPU"], "is a device and no back-end: write --device openvino:CPU"),
    (["--temprature", "1"], "there is no option --temprature: did you mean --temperature?"),
    (["--frobnicate"], "there is no option --frobnicate; see 'edgerun run --help'"),
    (["surplus"], "surplus"),
    (["--system", "be brief"], "--system needs a chat format"),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS)
@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["", "json"])
def test_an_option_that_cannot_be(
    shell: Shell, bundle: Path, options: list[str], words: str, as_json: list[str]
) -> None:
    assert words in shell.refuses(*ask(bundle, *options, *as_json))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnu"], "there is no command 'rnu': did you mean 'run'?"),
        (["expotr"], "there is no command 'expotr': did you mean 'export'?"),
        (
            ["frobnicate"],
            "there are run, chat, serve, bench, plan, inspect, perplexity, trace",
        ),
        (["--frobnicate"], "there is no option --frobnicate"),
        (["export", "x"], "'--out'"),
        (["perplexity", "x"], "missing argument FILE; see"),
        (["export"], "missing argument SRC; see"),
    ],
)
def test_a_command_that_is_not_there(shell: Shell, arguments: list[str], words: str) -> None:
    assert words in shell.refuses(*arguments)


def test_the_settings_of_other_commands(shell: Shell, bundle: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("some text")
    (tmp_path / "bytes").write_bytes(b"a\xff")
    model = (bundle, "--backend", "reference")
    assert "a prompt of 129 tokens" in shell.refuses("bench", *model, "-p", "129", "--json")
    assert str(10**12) in shell.refuses("bench", *model, "-n", 10**12, "--json")
    assert "context of 1 tokens has no room" in shell.refuses("bench", *model, "--context", "1")
    assert "context of 8 tokens has no" in shell.refuses(
        "bench", *model, "--context", "8", "-n", "8"
    )
    assert "at most 128 tokens" in shell.refuses("bench", *model, "--context", "129")
    assert "context is 0" in shell.refuses("bench", *model, "--context", "0")
    assert "window of 0 tokens" in shell.refuses("perplexity", *model, text, "--window", "0")
    assert "window of 129 tokens" in shell.refuses("perplexity", *model, text, "--window", "129")
    assert "not UTF-8" in shell.refuses("perplexity", *model, tmp_path / "bytes")
    assert "cannot read" in shell.refuses("perplexity", *model, tmp_path / "missing", "--json")
    (tmp_path / "lines").write_text("---\n---\n")
    line = shell.refuses("perplexity", *model, tmp_path / "lines", "--separator", "---", "--json")
    assert "lines holds too little text to score" in line
    line = shell.refuses("perplexity", *model, text, "--separator", "nosuch")
    assert "--separator is 'nosuch', and no line of" in line


# Settings are read once in a process, so each variable has one, which runs all commands.
EVERY_COMMAND = """
import contextlib, io, json, sys
from edgerun.cli.main import main
results = []
for command in json.loads(sys.argv[1]):
    sys.stdin = io.TextIOWrapper(io.BytesIO(b"hi"))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            code = main(command)
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"EDGERUN_ISA": "mmx"}, "EDGERUN_ISA is 'mmx', but this machine can run: "),
        ({"EDGERUN_THREADS": "1000"}, "EDGERUN_THREADS is 1000, but this process may use only"),
        ({"EDGERUN_THREADS": "0"}, "EDGERUN_THREADS='0' must be a whole number from 1"),
    ],
)
def test_variables_that_this_machine_cannot_follow(
    bundle: Path, tmp_path: Path, variables: dict[str, str], words: str
) -> None:
    commands = [[name, str(bundle)] for name in ("run", "chat", "bench")]
    commands += [["doctor"], ["doctor", "--calibrate"]]
    done = subprocess.run(
        [sys.executable, "-c", EVERY_COMMAND, json.dumps(commands)],
        env={**os.environ, "EDGERUN_CACHE": str(tmp_path / "cache"), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    results = json.loads(done.stdout)
    assert len(results) == len(commands)
    for code, out, err in results:
        assert words in err
        check_refusal(code, out, err, 2)
