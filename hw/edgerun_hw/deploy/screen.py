"""What people see: steps on stderr, reports on stdout."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from edgerun.cli.screen.visible import visible
from edgerun_hw.deploy.package import Package
from edgerun_hw.deploy.plan import name_of, overlay_of, plural, settings
from edgerun_hw.deploy.steps import Step

NAME_WIDTH = 9
PHASES = {"staging": "uploading", "placing": "unloading and moving folders", "loading": "loading"}
TICK, CROSS, DOT = "[green]✓[/]", "[red]✗[/]", "[dim]·[/]"


class Screen:
    """Shows steps on stderr as they are done; a context manager that marks the one that fails."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._current: Step | None = None

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close_bar()
        if kind is not None and self._current is not None:
            self._console.print(f"{CROSS} {self._current.name}")

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(_shown(text), soft_wrap=True)

    @contextlib.contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Shows what is waited for, on a terminal only."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(_shown(text)):
            yield

    def show(self, step: Step, result: str | None) -> None:
        """Shows that a step begins (on a terminal) or is done."""
        self._current = step if result is None else None
        if result is None:
            self._close_bar()
            if self._console.is_terminal:
                self._bar = Progress(
                    TextColumn(f"  {{task.description:<{NAME_WIDTH}}}"),
                    BarColumn(bar_width=30),
                    TextColumn("{task.fields[amount]}"),
                    console=self._console,
                    transient=True,
                )
                self._bar.start()
                self._bar.add_task(step.name, total=None, amount="")
            return
        self._close_bar()
        self._console.print(f"{TICK} {step.name:<{NAME_WIDTH}} {_shown(result)}", soft_wrap=True)

    def progress(self, sent: int, total: int) -> None:
        """Moves the bar of the step that is being done."""
        if self._bar is not None:
            amount = f"{sent / 1e6:.1f} of {total / 1e6:.1f} MB"
            self._bar.update(self._bar.task_ids[0], completed=sent, total=total, amount=amount)

    def dry_run(self, steps: Sequence[Step]) -> None:
        """Does the steps that only look, and prints the others."""
        for number, step in enumerate(steps, 1):
            result = None if step.changes_board else step.do()
            mark = DOT if step.changes_board else TICK
            self._console.print(f"{mark} {number:>2} [bold]{step.name:<{NAME_WIDTH}}[/]", end="")
            self._console.print(_shown(step.describe), soft_wrap=True)
            if result:
                self._console.print(f"{'':>{NAME_WIDTH + 5}}[dim]{_shown(result)}[/]")
        self.say("Nothing was changed.")

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def show_package(folder: Path, package: Package) -> None:
    """Prints what a package holds."""
    manifest = package.manifest
    checks = package.checksums
    rows = {
        "for": f"{manifest.board.title}, {manifest.part}",
        "bitstream": f"{manifest.files[manifest.bitstream][0] / 1e6:.2f} MB, "
        + (f"{plural(checks, 'checksum')} right" if checks else "made without checksums"),
        "registers": f"at {manifest.base:#x}, ID {manifest.identity:#010x}, "
        f"version {manifest.version:#010x}",
        "overlay": overlay_of(package),
        **{what: text or "left as they are" for what, text in settings(package).items()},
        "signed": "yes" if package.is_signed else "no",
        "release": str(manifest.release),
        "digest": manifest.digest,
    }
    _pairs(f"{folder}: application {manifest.application}", rows)


def show_status(status: dict[str, Any]) -> None:
    """Prints the state of a board."""
    rows = {
        "board": status["model"] or status["board"] or "unknown",
        "logic": f"{status['state'] or 'no FPGA manager'}, through {status['loader']}",
        "active": _active(status),
        "previous": name_of(status["previous"]) if status["previous"] else "none",
        "registers": _registers(status["registers"]),
        "installed": ", ".join(status["applications"]) or "nothing",
        "signatures": _signatures(status),
    }
    if status["locked_by"]:
        rows["in use"] = status["locked_by"]
    if status["overlays"]:
        names = ", ".join(status["overlays"])
        rows["overlays"] = f"{names}, of somebody else: the logic takes one (fpgautil -R)"
    if status["damaged"]:
        rows["damaged"] = ", ".join("/" + path for path in status["damaged"])
    _pairs(status["target"], rows)
    console = Console(highlight=False)
    interrupted = status["interrupted"]
    if interrupted:
        verb = "deployment" if interrupted["kind"] == "deploy" else "rollback"
        phase = PHASES.get(interrupted["phase"], "under way")
        console.print(
            f"[yellow]A {verb} of {_shown(name_of(interrupted['new']))} was interrupted while "
            f"{phase}.[/] Run [bold]edgerun fpga rollback[/] to take it back; the next deploy "
            "does so too, and leaves nothing loaded first if what ran before cannot be.",
            soft_wrap=True,
        )
    elif status["active"] and not status["is_loaded"] and not status["locked_by"]:
        console.print(
            "[yellow]The active application is not loaded[/], as after a start of the board: run "
            "the helper with [bold]boot[/] (docs/fpga-deploy.md), or deploy again.",
            soft_wrap=True,
        )


def _active(status: dict[str, Any]) -> str:
    if status["active"] is None:
        running = status["running"]
        return f"none of ours; {running} is loaded" if running else "none"
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(status["since"] or 0))
    loaded = "loaded" if status["is_loaded"] else "not loaded"
    return f"{name_of(status['active'])}, {loaded}, since {since}"


def _signatures(status: dict[str, Any]) -> str:
    if not status["needs_signature"]:
        return "not required"
    return "required" if status["trusts_keys"] else "required, and no key is trusted yet"


def _registers(registers: dict[str, Any] | None) -> str:
    if registers is None:
        return "not read"
    text = f"ID {registers['id']:#010x}, version {registers['version']:#010x}"
    return text if registers["as_expected"] else f"{text}: NOT what the manifest says"


def _pairs(title: str, rows: dict[str, str]) -> None:
    console = Console(highlight=False)
    console.print(f"[bold]{_shown(title)}[/]", soft_wrap=True)
    width = max(map(len, rows))
    for name, text in rows.items():
        console.print(f"  [dim]{name:<{width}}[/]  {_shown(text)}", soft_wrap=True)


def _shown(text: str) -> str:
    """Text of a board or a package: neither markup nor the terminal's own codes are obeyed."""
    return escape(visible(text))
