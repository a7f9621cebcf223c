"""Every bad input, through the real command line.

Each is one line on stderr that names the value and says what to do, an exit code (2 the caller's
mistake, 1 the machine's, 130 Ctrl-C), nothing on stdout, and no file left behind.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import io
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

from edgerun.cli import main as cli
from tests.bundles import GOLDEN, bundle_of

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
COMMANDS = (("export", "edgerun_export.cli:register"),)  # as installed, see pyproject.toml
Edit = Callable[[Path], None]


class Shell:
    """Runs commands that must fail, in a folder that they must leave as it is."""

    def __init__(self, folder: Path, capture: Any, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._capture = capture
        self._patch = patch

    def refuses(self, *arguments: object, code: int = 2, stdin: bytes | None = b"") -> str:
        """Returns the line of the error."""

        class Input(io.TextIOWrapper):
            def isatty(self) -> bool:
                return stdin is None

        self._patch.setattr("sys.stdin", Input(io.BytesIO(stdin or b""), "utf-8"))
        before = self._files()
        self._capture.readouterr()
        found = cli.main([str(argument) for argument in arguments])
        out, err = self._capture.readouterr()
        check(found, out, err, code)
        assert self._files() == before
        return str(err)

    def _files(self) -> set[Path]:
        return set(self.folder.rglob("*"))


def check(found: int, out: str, err: str, code: int) -> None:
    assert (found, out) == (code, ""), err
    assert err.startswith("edgerun: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.fixture
def shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    def points(group: str) -> list[importlib.metadata.EntryPoint]:
        return [importlib.metadata.EntryPoint(name, value, group) for name, value in COMMANDS]

    monkeypatch.setattr(cli, "entry_points", points)
    return Shell(tmp_path, capsys, monkeypatch)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle_of("llama"), tmp_path / "bundle"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "llama", tmp_path / "checkpoint"))


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
    assert "there is no bundle at" in shell.refuses(command, tmp_path / "missing", stdin=b"hi")
    for path in (tmp_path, tmp_path / "file"):
        line = shell.refuses(command, path, stdin=b"hi")
        assert f"{path} is no edgerun bundle" in line
        assert "edgerun export" in line


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


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        (b"", "the prompt is empty: give some text with -p or through stdin"),
        (b"\n", "the prompt is empty"),
        (b"abc\xff", "stdin is not UTF-8 text (byte 3)"),
        (None, "there is no prompt: give one with -p or through stdin"),
    ],
)
def test_stdin_without_a_prompt(
    shell: Shell, bundle: Path, stdin: bytes | None, words: str
) -> None:
    assert words in shell.refuses("run", bundle, stdin=stdin)


OPTIONS = [
    (["-p", ""], "the prompt is empty"),
    (["--temperature", "-1"], "temperature is -1.0; expected a number from 0 to 100"),
    (["--temperature", "nan"], "temperature is nan; expected"),
    (["--temperature", "inf"], "temperature is inf; expected"),
    (["--temperature", "1e9"], "temperature is 1000000000.0; expected"),
    (["--temperature", "hot"], "'hot'"),
    (["--top-p", "0"], "top_p is 0.0; expected a number above 0 up to 1"),
    (["--top-p", "2"], "top_p is 2.0; expected"),
    (["--min-p", "-0.1"], "min_p is -0.1; expected"),
    (["--top-k", "-1"], "top_k is -1; expected"),
    (["--repetition-penalty", "0"], "repetition_penalty is 0.0; expected"),
    (["-n", "0"], "max_tokens is 0; expected a whole number from 1"),
    (["-n", "-5"], "max_tokens is -5; expected"),
    (["-n", str(10**12)], f"max_tokens is {10**12}; expected"),
    (["-n", "few"], "'few'"),
    (["--seed", "-1"], "seed is -1; expected a whole number from 0"),
    (["--seed", str(2**64)], f"seed is {2**64}; expected"),
    (["--threads", "0"], "threads is 0; expected a whole number from 1 to 1024"),
    (["--threads", "9999"], "threads is 9999; expected"),
    (["--context", "0"], "context is 0; expected"),
    (["--context", "4096"], "context is 4096; this model was made for at most 128"),
    (["--kv-cache", "int3"], "kv_cache is 'int3'; expected one of fp32, fp16, int8"),
    (["--backend", "tpu"], "no back-end is called 'tpu': there are cpu, reference"),
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
        (["frobnicate"], "there are run, chat, bench, plan, inspect, perplexity, doctor, export"),
        (["--frobnicate"], "there is no option --frobnicate"),
        (["export", "x"], "'--out'"),
        (["perplexity", "x"], "missing argument"),
    ],
)
def test_a_command_that_is_not_there(shell: Shell, arguments: list[str], words: str) -> None:
    assert words in shell.refuses(*arguments)


def test_the_settings_of_other_commands(shell: Shell, bundle: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("some text")
    (tmp_path / "bytes").write_bytes(b"a\xff")
    model = (bundle, "--backend", "reference")
    assert "prompt has 129 tokens" in shell.refuses("bench", *model, "-p", "129", "--json")
    assert str(10**12) in shell.refuses("bench", *model, "-n", 10**12, "--json")
    assert "window of 0 tokens" in shell.refuses("perplexity", *model, text, "--window", "0")
    assert "window of 129 tokens" in shell.refuses("perplexity", *model, text, "--window", "129")
    assert "not UTF-8" in shell.refuses("perplexity", *model, tmp_path / "bytes")
    assert "cannot read" in shell.refuses("perplexity", *model, tmp_path / "missing", "--json")


# Checkpoints.


@pytest.fixture
def export(shell: Shell, tmp_path: Path) -> Callable[..., str]:
    def call(source: object, *options: object, code: int = 2) -> str:
        return shell.refuses("export", source, "-o", tmp_path / "out", *options, code=code)

    return call


Export = Callable[..., str]


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
    edit_config(checkpoint, model_type="mamba", architectures=["MambaForCausalLM"])
    line = export(checkpoint)
    assert "architecture 'mamba' is not supported; supported are: llama, mistral, qwen2" in line


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
        (["--weights", "int3"], "--weights int3 is not supported; choose one of: ternary, int2"),
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
    assert f"'{out}' exists; choose another output, or add --force" in line
    assert "is no bundle" in shell.refuses("export", source, "-o", out, "--force")
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
        ("edgerun_export.external_data.DataWriter.add", FULL, "no space left"),
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
        ("tempfile.mkstemp", DENIED, "Permission denied"),
    ],
)
def test_a_session_that_cannot_be_saved_keeps_the_old_one_and_the_chat(
    run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    function: str,
    error: OSError,
    words: str,
) -> None:
    file = tmp_path / "chat"
    file.write_text("an older one")
    monkeypatch.setattr(function, failing(error))
    result = run("chat", "-n", "3", stdin=f"hello\n/save {file}\nagain\n".encode())
    assert (result.code, len(result.out.splitlines())) == (0, 2)
    assert (result.err.count("\n"), words in result.err) == (1, True)
    assert "Traceback" not in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["chat"]
    assert file.read_text() == "an older one"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_output_that_is_full(repo_root: Path) -> None:
    command = [sys.executable, "-m", "edgerun.cli.main", "--version"]
    with open("/dev/full", "wb") as full:
        run = subprocess.run(
            command, cwd=repo_root, stdout=full, stderr=subprocess.PIPE, check=False
        )
    check(run.returncode, "", run.stderr.decode(), 1)
    assert b"No space left" in run.stderr


SLOW_EXPORT = """
import sys, time
from edgerun_export import pipeline
from edgerun.cli import main as cli
from importlib.metadata import EntryPoint
cli.entry_points = lambda group: [EntryPoint("export", "edgerun_export.cli:register", group)]
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
    out, err = process.communicate(timeout=30)
    check(process.returncode, out.decode(), err.decode(), 130)
    assert err == b"edgerun: interrupted\n"
    assert list(tmp_path.iterdir()) == []
