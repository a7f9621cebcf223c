"""What a type checker sees of edgerun: the documented examples are right, mistakes are not."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import edgerun

pytest.importorskip("mypy")
ERROR = re.compile(r"^(?:.*[/\\])?(\w+)\.py:(\d+): error: (.*)$", re.MULTILINE)
EXAMPLES = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Every line but the first is a mistake, and what is said of it.
MISTAKES = {
    "import edgerun": "",
    "llm = edgerun.load(thread=2)": 'did you mean "threads"',
    "llm.generate('x', temprature=1)": 'did you mean "temperature"',
    "llm.generate('x', max_tokens='5')": 'expected "int | None"',
    "llm.generate(1.5)": "incompatible type",
    "llm.stream_chat('x')": "incompatible type",
    "llm.generate_many(['x'], top_q=1)": "did you mean",
    "llm.session().send('x', top_q=1)": "did you mean",
    "llm.session().send(5)": "incompatible type",
    "edgerun.load(kv_cache='fp8')": "incompatible type",
    "edgerun.laod()": 'no attribute "laod"',
    "llm.generate('x').txt": 'has no attribute "txt"',
    "count: int = edgerun.PromptError('x').tokens": "int | None",
}
TYPES = """
from typing_extensions import assert_type
import edgerun
with edgerun.load() as llm, llm.session() as chat:
    assert_type(llm, edgerun.LLM)
    assert_type(chat, edgerun.ChatSession)
    assert_type(llm.generate("x"), edgerun.Completion)
    assert_type(llm.generate_many(["x", [1]]), list[edgerun.Completion])
    assert_type(chat.send("x", stop=["a"], max_tokens=3), edgerun.TextStream)
    assert_type(chat.send("x").result().text, str)
    assert_type(next(llm.stream([1, 2])), str)
options: edgerun.SamplingKeywords = {"temperature": 0.5, "seed": 1}
llm.chat([{"role": "user", "content": "x"}], **options)
"""


@pytest.fixture(scope="module")
def errors(
    repo_root: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Mapping[tuple[str, int], str]:
    """What mypy says, by file and line; one run for all, incremental from run to run."""
    folder = tmp_path_factory.mktemp("typed")
    sources = {"mistakes": "\n".join(MISTAKES), "results": TYPES}
    for page in (repo_root / "README.md", *sorted((repo_root / "docs").glob("*.md"))):
        for number, example in enumerate(EXAMPLES.findall(page.read_text("utf-8"))):
            sources[f"example_{page.stem.replace('-', '_')}_{number}"] = example
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source, "utf-8")
    cache = request.config.cache
    kept = cache.mkdir("mypy") if cache else folder / "cache"
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(kept)]
    command += ["--config-file", "pyproject.toml", *map(str, sorted(folder.glob("*.py")))]
    run = subprocess.run(command, capture_output=True, text=True, cwd=repo_root, check=False)
    assert run.returncode == 1, run.stdout + run.stderr  # it found the mistakes
    assert "example_README_0" in sources
    return {(name, int(line)): text for name, line, text in ERROR.findall(run.stdout)}


def test_documented_examples_are_typed(errors: Mapping[tuple[str, int], str]) -> None:
    assert not {place: text for place, text in errors.items() if place[0].startswith("example_")}


def test_results_have_types(errors: Mapping[tuple[str, int], str]) -> None:
    assert not {place: text for place, text in errors.items() if place[0] == "results"}


def test_every_mistake_is_found(errors: Mapping[tuple[str, int], str]) -> None:
    for number, (line, words) in enumerate(MISTAKES.items(), 1):
        found = errors.get(("mistakes", number), "")
        assert words in found if words else not found, f"{line}: {found or 'no error'}"
    assert edgerun.PromptError("x").tokens is None


def test_everything_that_is_announced_is_there() -> None:
    assert sorted(edgerun.__all__) == edgerun.__dir__()
    for name in edgerun.__all__:
        assert getattr(edgerun, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'laod'"):
        edgerun.laod  # type: ignore[attr-defined]  # noqa: B018
