"""Links of documents lead somewhere, and lists in them are those of the code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

LINK = re.compile(r"\]\(([^()\s]+(?:\([^()\s]*\)[^()\s]*)*)\)")
HEADING = re.compile(r"^#{1,6} (.+?)\s*$")
FENCE = "```"
# What GitHub leaves out of a heading when it makes an anchor of it.
LEFT_OUT = re.compile(r"[^\w\- ]")
ROOT = Path(__file__).parents[2]


def documents() -> list[Path]:
    """The Markdown files that git has, but the history of changes, whose links are of its time."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = listed.stdout.split("\n") if not listed.returncode else []
    return [ROOT / name for name in names if name and name != "CHANGELOG.md"]


def prose(path: Path) -> list[str]:
    """The lines of a document that are no code."""
    lines, is_code = [], False
    for line in path.read_text().splitlines():
        if line.lstrip().startswith(FENCE):
            is_code = not is_code
        elif not is_code:
            lines.append(line)
    return lines


def anchors(path: Path) -> set[str]:
    """What a document's headings are called in links."""
    headings = [match[1] for line in prose(path) if (match := HEADING.match(line))]
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {LEFT_OUT.sub("", heading.lower()).replace(" ", "-") for heading in plain}


def broken(path: Path) -> list[str]:
    """The links of a document that lead nowhere."""
    text = re.sub(r"`[^`]*`", "", "\n".join(prose(path)))
    dead = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            dead.append(target)
    return dead


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout, so nothing lists files")
def test_every_link_leads_somewhere() -> None:
    paths = documents()
    assert ROOT / "README.md" in paths
    assert {str(path.relative_to(ROOT)): links for path in paths if (links := broken(path))} == {}


def test_gguf_architectures_are_those_that_the_document_lists() -> None:
    architectures = pytest.importorskip("edgerun_export.checkpoint.gguf_architectures")
    text = (ROOT / "docs" / "checkpoints.md").read_text()
    table = text.partition("| `general.architecture` |")[2].partition("\n\n")[0]
    first = "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))
    assert sorted(re.findall(r"`([^`]+)`", first)) == sorted(architectures.ARCHITECTURES)
