import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from edgerun.errors import InputError, UnsupportedError
from edgerun_export.checkpoint.base import Provenance, Source
from edgerun_export.cli import register

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture
def run():
    app = typer.Typer()
    register(app)

    @app.command()
    def other() -> None:
        """A second command, so that the first one keeps its name."""

    def invoke(*arguments):
        return CliRunner().invoke(app, ["export", *map(str, arguments)])

    return invoke


def test_export_writes_a_bundle_and_nothing_to_stdout(run, tmp_path):
    result = run(GOLDEN / "llama", "-o", tmp_path / "out", "--weights", "int8", "--verify")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert "llama, int8 weights in groups of 32, int8 head" in result.stderr
    assert "verified" in result.stderr
    assert (tmp_path / "out" / "manifest.json").exists()


def test_json_prints_the_manifest_to_stdout(run, tmp_path):
    result = run(GOLDEN / "bitnet-packed", "-o", tmp_path / "out", "--json")
    value = json.loads(result.stdout)
    assert value["recipe"]["weights"] == "ternary"
    assert value["path"] == str(tmp_path / "out")
    assert value["warnings"] == []


def test_licence_and_location_of_the_user_go_into_the_manifest(run, tmp_path):
    stated = ["--licence", "Apache-2.0", "--location", "https://models.example/a"]
    result = run(GOLDEN / "llama", "-o", tmp_path / "out", "--json", *stated)
    source = json.loads(result.stdout)["source"]
    assert (source["licence"], source["location"]) == ("Apache-2.0", "https://models.example/a")
    for option, value in [
        ("--licence", ""),
        ("--licence", "x" * 101),
        ("--licence", "mit\n"),
        ("--location", " here"),
        ("--location", "a\x1b[2Jb"),
        ("--location", "x" * 501),
    ]:
        result = run(GOLDEN / "llama", "-o", tmp_path / "no", option, value)
        assert isinstance(result.exception, InputError)
        assert str(result.exception).startswith(f"{option} is ")
        assert not (tmp_path / "no").exists()


def test_a_location_that_is_given_replaces_the_url_of_the_file():
    file = Source("gguf", "a.gguf", licence="mit", url="https://a.example")
    assert Provenance().applied(file) == file
    assert Provenance(licence="BSD-2-Clause").applied(file) == replace(file, licence="BSD-2-Clause")
    assert Provenance(location="here").applied(file) == Source("gguf", "here", licence="mit")


def test_warnings_go_to_stderr(run, tmp_path):
    result = run(GOLDEN / "llama", "-o", tmp_path / "out", "--weights", "ternary")
    assert "warning: this model was not trained for ternary weights" in result.stderr


def test_errors_are_left_to_the_main_command(run, tmp_path):
    result = run(GOLDEN / "llama", "-o", tmp_path / "out", "--weights", "int3")
    assert isinstance(result.exception, UnsupportedError)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    result = run(GOLDEN / "llama", "-o", tmp_path / "full")
    assert isinstance(result.exception, InputError)
    assert run(GOLDEN / "llama").exit_code == 2


@pytest.mark.parametrize(
    ("options", "useless"),
    [
        ("--weights fp32 --group-size 64", "--group-size has no effect"),
        ("--weights fp32 --method rtn --head-weights int8", "--method has no effect"),
        ("--weights fp32 --scales fp16", "--scales has no effect"),
        ("--weights source --scales fp16", "--scales has no effect"),
        ("--calibration-windows 64", "--calibration-windows says how much text is read"),
        ("--calibration-tokens 512", "--calibration-tokens says how much text is read"),
    ],
)
def test_options_without_effect_are_refused(run, tmp_path, options, useless):
    if "source" in options:
        options += " --head-weights fp32"
    result = run(GOLDEN / "llama", "-o", tmp_path / "out", *options.split())
    assert isinstance(result.exception, UnsupportedError)
    assert str(result.exception).startswith(useless) and "leave it out" in str(result.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options",
    [
        "--group-size 64 --head-weights int8",
        "--scales fp16 --embedding-weights int4",
        "--scales fp16 --rule *.down_proj=int4",
    ],
)
def test_options_about_rounding_have_an_effect_where_anything_is_rounded(run, tmp_path, options):
    result = run(GOLDEN / "llama", "-o", tmp_path / "out", "--weights", "fp32", *options.split())
    assert result.exit_code == 0, result.output


def test_an_empty_name_is_not_the_current_folder(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(GOLDEN / "llama", "-o", "")
    assert isinstance(result.exception, InputError)
    assert str(result.exception).startswith("--out is empty; give the folder")
    result = run(GOLDEN / "llama", "-o", ".")
    assert str(result.exception).startswith("'.' is the working folder")
    assert list(tmp_path.iterdir()) == []


def test_force_replaces_an_existing_bundle(run, tmp_path):
    for name in ("llama", "qwen2"):
        result = run(GOLDEN / name, "-o", tmp_path / "out", "--force")
        assert result.exit_code == 0, result.output
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["model"]["architecture"] == "qwen2"


def test_the_package_is_a_command_without_being_installed(tmp_path, repo_root):
    folders = [str(repo_root), str(repo_root / "export")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-m", "edgerun_export"]
    for source, code in ((GOLDEN / "llama", 0), (tmp_path / "none", 2)):
        result = subprocess.run(
            [*command, source, "-o", tmp_path / "out", "--weights", "int8"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == code, result.stderr
    assert (tmp_path / "out" / "manifest.json").exists()
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("edgerun_export: ")
