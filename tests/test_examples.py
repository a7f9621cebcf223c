"""The Python examples of the documentation run, on the model that comes with edgerun."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgerun.llm.loading import resolve
from tests.test_typing import EXAMPLES

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/python.md")
CASES = [
    pytest.param(example, id=f"{page}-{number}")
    for page in PAGES
    for number, example in enumerate(EXAMPLES.findall((ROOT / page).read_text("utf-8")))
]


@pytest.mark.parametrize("example", CASES)
def test_an_example_runs(
    example: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "my-model").symlink_to(resolve(None), target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "example", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()
