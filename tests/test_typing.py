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
    "edgerun.load(kv_cache=8)": "incompatible type",
    "edgerun.laod()": 'no attribute "laod"',
    "llm.generate('x').txt": 'has no attribute "txt"',
    "count: int = edgerun.PromptError('x').tokens": "int | None",
}
RESULTS = """
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


def errors_of(
    sources: Mapping[str, str], folder: Path, cache: Path, root: Path
) -> Mapping[tuple[str, int], str]:
    """What mypy says, by file and line."""
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source, "utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache)]
    command += ["--config-file", "pyproject.toml", *map(str, sorted(folder.glob("*.py")))]
    run = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert run.returncode == 1, run.stdout + run.stderr  # it found the mistakes
    return {(name, int(line)): text for name, line, text in ERROR.findall(run.stdout)}


def test_examples_are_right_and_mistakes_are_found(
    repo_root: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One run for all, which shares what it learns of the source with mypy's own runs there."""
    sources = {"mistakes": "\n".join(MISTAKES), "results": RESULTS}
    for page in (repo_root / "README.md", *sorted((repo_root / "docs").glob("*.md"))):
        for number, example in enumerate(EXAMPLES.findall(page.read_text("utf-8"))):
            sources[f"example_{page.stem.replace('-', '_')}_{number}"] = example
    assert "example_README_0" in sources
    is_kept = hasattr(request.config, "cache")  # pytest may have been told to keep nothing
    cache = (repo_root if is_kept else tmp_path) / ".mypy_cache"
    errors = errors_of(sources, tmp_path, cache, repo_root)
    for number, (line, words) in enumerate(MISTAKES.items(), 1):
        error = errors.get(("mistakes", number), "")
        assert words in error if words else not error, f"{line}: {error or 'no error'}"
    assert not {place: text for place, text in errors.items() if place[0] != "mistakes"}


def test_everything_that_is_announced_is_there() -> None:
    assert sorted(edgerun.__all__) == edgerun.__dir__()
    for name in edgerun.__all__:
        assert getattr(edgerun, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'laod'"):
        edgerun.laod  # type: ignore[attr-defined]  # noqa: B018
