"""Every bad checkpoint, and every place that cannot be written, through the real command line.

Each is one line on stderr that names the value and says what to do, an exit code (2 the caller's
mistake, 1 the machine's, 130 Ctrl-C), nothing on stdout, and no file left behind.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Run, Shell, check_refusal
from tests.support.bundles import GOLDEN, bundle_of

Export = Callable[..., str]
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "llama", tmp_path / "checkpoint"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture
def export(shell: Shell, tmp_path: Path) -> Callable[..., str]:
    def call(source: object, *options: object, code: int = 2) -> str:
        return shell.refuses("export", source, "-o", tmp_path / "out", *options, code=code)

    return call


def edit_config(checkpoint: Path, **changes: Any) -> None:
    file = checkpoint / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def edit_weight(checkpoint: Path, weight: np.ndarray) -> None:
    from safetensors.numpy import load_file, save_file

    file = checkpoint / "model.safetensors"
    save_file({**load_file(file), Q_PROJ: weight}, file)


def test_a_checkpoint_that_is_not_there(export: Export, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    assert "no file or folder '/nowhere/at/all'" in export("/nowhere/at/all")
    assert "the checkpoint's name is empty" in export("")
    for name in ("empty", "notes.txt"):
        assert "expected a folder with config.json and model.safetensors" in export(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.safetensors", "truncated"),
        ("config.json", "'config.json' is not the JSON expected"),
        ("tokenizer.json", "'tokenizer.json' is not the JSON expected"),
    ],
)
def test_a_truncated_safetensors_checkpoint(
    export: Export, checkpoint: Path, name: str, words: str
) -> None:
    cut(checkpoint / name)
    assert words in export(checkpoint)


@pytest.mark.parametrize("place", [0, 7, 8, 40])
def test_a_flipped_bit_in_the_header_of_safetensors(
    export: Export, checkpoint: Path, place: int
) -> None:
    file = checkpoint / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[place] ^= 64
    file.write_bytes(data)
    assert "model" in export(checkpoint)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_of_a_checkpoint(export: Export, checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    assert name in export(checkpoint)


GGUF = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("empty.gguf", b"", "empty.gguf"),
        ("cut.gguf", GGUF[:10], "truncated"),
        ("cut.gguf", GGUF, "truncated"),
        ("flipped.gguf", GGUF.replace(b"\3", b"\x83"), "version"),
        ("huge.gguf", GGUF + b"\xff" * 64, "huge.gguf"),
        ("cut.bin", struct.pack("<7i", 64, 172, 5, 8, 4, 512, 512), "cut.bin"),
        ("flipped.bin", struct.pack("<7i", 64, -172, 5, 8, 4, 512, 512), "flipped.bin"),
        ("pickle.bin", b"PK\3\4" + bytes(100), "never loaded"),
    ],
)
def test_a_damaged_file_checkpoint(
    export: Export, tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(data)
    assert words in export(tmp_path / name)


def test_an_architecture_that_is_not_supported(export: Export, checkpoint: Path) -> None:
    edit_config(checkpoint, model_type="gptj", architectures=["GPTJForCausalLM"])
    line = export(checkpoint)
    assert "architecture 'gptj' is not supported; supported are: afmoe, " in line
    assert ", ministral3, mistral, " in line


def test_a_tensor_type_that_is_not_supported(export: Export, checkpoint: Path) -> None:
    edit_weight(checkpoint, np.zeros((64, 64), np.int32))
    line = export(checkpoint)
    assert f"'{Q_PROJ}' is stored as I32" in line
    assert "supported: F32, F16, BF16" in line


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers(export: Export, checkpoint: Path, value: float) -> None:
    weight = np.ones((64, 64), np.float32)
    weight[40, 2] = value
    edit_weight(checkpoint, weight)
    line = export(checkpoint)
    assert f"'{Q_PROJ}' holds NaN or Inf" in line


def test_a_vocabulary_that_does_not_fit(export: Export, checkpoint: Path) -> None:
    file = checkpoint / "tokenizer.json"
    content = json.loads(file.read_text())
    content["added_tokens"][0]["id"] = 5000
    file.write_text(json.dumps(content))
    assert "5001 tokens and the model's embedding 264 rows" in export(checkpoint)
    edit_config(checkpoint, vocab_size=100)
    assert "has shape [264, 64]; config.json asks for [100, 64]" in export(checkpoint)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--weights", "int3"], "--weights int3 is not supported; choose one of: int2, int2_asym"),
        (["--group-size", "7"], "--group-size 7 is not supported"),
        (["--profile", "tpu"], "--profile tpu is not supported"),
        (["--revision", "main"], "--revision main is for hub ids"),
        (["--tokenizer", "x"], "--tokenizer is for llama2.c files"),
        (["--frobnicate"], "there is no option --frobnicate"),
    ],
)
def test_an_export_option_that_cannot_be(export: Export, options: list[str], words: str) -> None:
    for as_json in ([], ["--json"]):
        assert words in export(GOLDEN / "llama", *options, *as_json)


# Where to write.


def test_an_output_that_exists(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("data")
    source = GOLDEN / "llama"
    line = shell.refuses("export", source, "-o", out)
    assert f"'{out}' is no bundle, so --force does not replace it" in line
    assert line == shell.refuses("export", source, "-o", out, "--force")
    bundle = Path(shutil.copytree(bundle_of("llama", weights="int4"), tmp_path / "bundle"))
    line = shell.refuses("export", source, "-o", bundle)
    assert f"'{bundle}' exists; choose another output, or add --force" in line
    assert "is not a folder" in shell.refuses("export", source, "-o", out / "precious")
    assert "is a file" in shell.refuses("export", source, "-o", out / "precious" / "out")


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
DENIED = PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def failing(error: OSError) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        ("edgerun_export.graph.external_data.DataWriter.add", FULL, "no space left"),
        ("os.fsync", FULL, "no space left"),
        ("os.replace", FULL, "no space left"),
        ("tempfile.mkdtemp", DENIED, "no permission to write"),
    ],
)
def test_an_export_that_cannot_be_written(
    export: Export, monkeypatch: pytest.MonkeyPatch, function: str, error: OSError, words: str
) -> None:
    monkeypatch.setattr(function, failing(error))
    line = export(GOLDEN / "llama", code=1)
    assert words in line


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        ("os.fsync", FULL, "No space left"),
        ("os.replace", FULL, "No space left"),
        ("os.open", DENIED, "Permission denied"),
    ],
)
def test_a_session_that_cannot_be_saved_keeps_the_old_one_and_the_chat(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    function: str,
    error: OSError,
    words: str,
) -> None:
    file = tmp_path / "chat"
    run("chat", "-n", "3", stdin=f"good morning\n/save {file}\n".encode())
    older = file.read_bytes()
    monkeypatch.setattr(function, failing(error))
    result = run("chat", "-n", "3", stdin=f"hello\n/save {file}\nagain\n".encode())
    assert (result.code, len(result.out.splitlines())) == (1, 2)
    lines = [line for line in result.err.splitlines() if "the reply is cut after" not in line]
    assert (len(lines), words in lines[0]) == (2, True)
    assert lines[1].endswith("1 of the lines failed, see above")
    assert "Traceback" not in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["chat"]
    assert file.read_bytes() == older


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_full(unbuffered: str, repo_root: Path) -> None:
    command = [sys.executable, "-m", "edgerun.cli.main", "--version"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        run = subprocess.run(
            command,
            cwd=repo_root,
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment,
            check=False,
        )
    check_refusal(run.returncode, "", run.stderr.decode(), 1)
    assert b"No space left" in run.stderr


# A shell starts background jobs with SIGINT ignored, and that is inherited.
SLOW_EXPORT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from edgerun_export import pipeline
from edgerun.cli import commands, main as cli
from importlib.metadata import EntryPoint
commands.entry_points = lambda group: [EntryPoint("export", "edgerun_export.cli:register", group)]
def wait(job):
    print("writing", flush=True)
    time.sleep(60)
pipeline._Job._write_files = wait
sys.exit(cli.main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_during_an_export_leaves_nothing(tmp_path: Path, repo_root: Path) -> None:
    folders = [str(repo_root), str(repo_root / "export")]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_EXPORT, "export", str(GOLDEN / "llama"), "-o", "out"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    assert len(list(tmp_path.iterdir())) == 1  # the weights, so far
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    check_refusal(process.returncode, out.decode(), err.decode(), 130)
    assert err == b"edgerun: interrupted\n"
    assert list(tmp_path.iterdir()) == []
