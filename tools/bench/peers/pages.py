"""Writes what a results file says into two pages, between marks in each, and its plots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bench.peers import figures, models, plots
from tools.bench.peers.results import Run, runs_of

PAGE = "benchmarks.md"
GOALS_PAGE = "benchmarks-method.md"
FOLDER = "benchmarks"
BEGIN = "<!-- Written by tools/bench/peers --docs from a results file: begin -->"
END = "<!-- end -->"
TITLES = {
    "bitnet-2b-4t": "Shape of BitNet b1.58 2B4T",
    "llama-3.2-1b": "Shape of Llama 3.2 1B",
    "olmoe-1b-7b": "Shape of OLMoE 1B-7B",
    "qwen3-30b-a3b-8": "Eight layers of Qwen3-30B-A3B's shape",
    "default": "The model that comes with edgerun",
    "small": "The small model",
    "tiny": "A tiny model",
}
PLOTS: dict[str, tuple[Callable[[Sequence[Run], Path, str], None], str]] = {
    "context": (plots.context_plot, "Decoding against the length of the context"),
    "prompt": (plots.prompt_plot, "Prefill against the length of the prompt"),
    "threads": (plots.threads_plot, "Speed against the number of threads"),
    "compare": (plots.roofline_plot, "Roofline"),
}


def write(runs: Sequence[Run], docs: Path) -> list[Path]:
    """Writes both pages and the plots; returns their paths.

    Raises:
        SystemExit: a page has no place for them.
    """
    written = [docs / PAGE, docs / GOALS_PAGE]
    for page in written:
        _between_marks(page)  # complains before anything is drawn
    _fill(docs / GOALS_PAGE, _goals(runs))
    _fill(docs / PAGE, _sections(runs, docs, written))
    return written


def _between_marks(page: Path) -> tuple[str, str]:
    """What stands before the first mark and behind the last."""
    text = page.read_text() if page.exists() else f"{BEGIN}\n{END}\n"
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{page} has no lines '{BEGIN}' and '{END}' to write between")
    before, after = text.split(BEGIN, 1)
    return before, after.split(END, 1)[1]


def _fill(page: Path, parts: Iterator[str]) -> None:
    before, after = _between_marks(page)
    body = "\n\n".join(parts)
    page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}")


def _goals(runs: Sequence[Run]) -> Iterator[str]:
    for preset in models.PRESETS:
        summaries = [figures.summary(run) for run in runs_of(runs, "compare", preset)]
        tables = [figures.goal_table(summed["goals"]) for summed in summaries]
        if any(tables):
            yield f"### {TITLES[preset]}"
            yield from filter(None, tables)


def _sections(runs: Sequence[Run], docs: Path, written: list[Path]) -> Iterator[str]:
    for preset in models.PRESETS:
        runs_by_kind = {kind: list(runs_of(runs, kind, preset)) for kind in PLOTS}
        if not any(runs_by_kind.values()):
            continue
        yield f"### {TITLES[preset]}"
        for run in runs_by_kind["compare"]:
            yield _compare(run)
        for kind, (draw, caption) in PLOTS.items():
            usable = [run for run in runs_by_kind[kind] if _has_samples(run)]
            if usable:
                path = docs / FOLDER / f"{preset}-{kind}.png"
                draw(usable, path, TITLES[preset])
                written.append(path)
                yield f"![{caption}]({FOLDER}/{path.name})"


def _compare(run: Run) -> str:
    summed = figures.summary(run)
    speed = summed["bandwidth_gb_per_s"]
    note = "" if run["complete"] else " The run did not end; what it had measured counts."
    return (
        f"{summed['date']}, {summed['processor']}, {summed['isa']}, {summed['threads']} threads, "
        f"{summed['rounds']} rounds. Memory {speed['max']:g} GB/s (rounds from {speed['min']:g}), "
        f"int8 peak {summed['int8_peak_tops']:g} TOPS.{note} {_versions(summed['peers'])}\n\n"
        f"{figures.table(summed)}"
    )


def _versions(peers: Mapping[str, Mapping[str, Any]]) -> str:
    versions = {
        name.split(":")[0]: str(peer["version"]).split(";")[0]
        for name, peer in peers.items()
        if "version" in peer
    }
    return f"Versions: {', '.join(f'{kind} {version}' for kind, version in versions.items())}."


def _has_samples(run: Run) -> bool:
    return any(peer.get("samples") for peer in run["peers"].values())
