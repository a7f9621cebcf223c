"""What a deployment and a rollback consist of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgerun_hw.build.boards import load_board
from edgerun_hw.deploy.broker.application.manifest import MANIFEST, SIGNATURE
from edgerun_hw.deploy.broker.board.boards import BOARDS
from edgerun_hw.deploy.broker.board.loader import FIRMWARE
from edgerun_hw.deploy.broker.board.policy import KEYS, SETTINGS
from edgerun_hw.deploy.broker.board.settings import megahertz
from edgerun_hw.deploy.client import Board, person
from edgerun_hw.deploy.errors import RefusedError
from edgerun_hw.deploy.package import Package
from edgerun_hw.deploy.steps import Step

Progress = Callable[[int, int], None]
"""Called with the bytes that have arrived and those of the whole package."""


def short(digest: str) -> str:
    """Enough of a digest for people."""
    return digest[:8]


def plural(count: int, noun: str) -> str:
    """A count and what is counted."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def name_of(application: dict[str, Any] | None) -> str:
    """An application as an answer of the board names it."""
    if application is None:
        return "nothing"
    return f"{application['name']} ({short(application['digest'])})"


@dataclass
class Outcome:
    """What has been found and done; filled in by the steps, printed by ``--json``."""

    board: dict[str, Any]
    old: dict[str, Any] | None = None
    new: dict[str, Any] | None = None
    registers: dict[str, int] | None = None
    recovered: str | None = None
    done: bool = False


def is_running(package: Package, board: Board) -> bool:
    """Whether the board runs exactly this package already, and nobody is about to change that.

    Its copy on the board has to pass the checks of the next start, and be signed like this one.
    """
    status = board.ask("status")
    active = status["active"]
    signature = package.files.get(SIGNATURE)
    return bool(
        active
        and active["digest"] == package.manifest.digest
        and status["signature"] == (signature and hashlib.sha256(signature).hexdigest())
        and status["is_intact"]
        and status["is_loaded"]
        and not status["interrupted"]
        and not status["locked_by"]
    )


def check_board(package: Package, board: dict[str, Any]) -> str:
    """Compares the board with what the package is for.

    Args:
        package: to be deployed.
        board: the board's answer to ``hello``.

    Returns:
        A few words about the board.

    Raises:
        RefusedError: it is another board, or takes signed packages only.
    """
    target = package.manifest.board
    if board["board"] != target.name:
        other = BOARDS.get(board["board"] or "")
        names = ", ".join(board["compatible"]) or "nameless"
        is_a = other.title if other else f"unknown ({names})"
        hint = (
            ""
            if other
            else f'; where these name only a module or processor, say {{"board": "{target.name}"}} '
            f"in /{SETTINGS} there"
        )
        raise RefusedError(f"the package is for {target.title}, and the board is {is_a}{hint}")
    if board["needs_signature"] and not board["trusts_keys"]:
        raise RefusedError(
            f"the board trusts no keys yet: put your public key into /{KEYS} there, or allow "
            f'packages without a signature with {{"allow_unsigned": true}} in /{SETTINGS}'
        )
    if board["needs_signature"] and not package.is_signed:
        raise RefusedError(
            "the board takes signed packages only, and this one is not: package it with --sign"
        )
    return f"{board['model'] or target.title}, {board['loader']}, {board['state'] or 'no state'}"


def deploy_steps(
    package: Package, folder: Path, board: Board, outcome: Outcome, progress: Progress
) -> list[Step]:
    """The steps that put a package on a board.

    Args:
        package: complete and checked.
        folder: where it was read from, for people.
        board: whose ``hello`` is in ``outcome.board``.
        outcome: filled in.
        progress: of the upload.
    """
    return [
        *_checking(package, folder, board, outcome),
        *_sending(package, board, outcome, progress),
        *_activation(board, outcome, _settings(package)),
    ]


def _checking(package: Package, folder: Path, board: Board, outcome: Outcome) -> list[Step]:
    """The steps that only look, at the package and at the board."""
    manifest = package.manifest
    signed = "signed" if package.is_signed else "not signed"
    checks = plural(package.checksums, "checksum") if package.checksums else "no checksum"
    summary = (
        f"{manifest.application} ({short(manifest.digest)}) for {manifest.board.title}, {checks}, "
        f"{signed}; {overlay_of(package)}"
    )
    return [
        Step(
            "package",
            f"Check {folder}: the manifest, {len(manifest.files)} digests, the bitstream's "
            f"checksums, its part {manifest.part} and IDCODE, the overlay.",
            lambda: summary,
            changes_board=False,
        ),
        Step(
            "board",
            f"Ask {board.target.name} who it is; it must be {manifest.board.title}.",
            lambda: check_board(package, outcome.board),
            changes_board=False,
        ),
    ]


def _sending(package: Package, board: Board, outcome: Outcome, progress: Progress) -> list[Step]:
    """The steps that lock the board, send the package and have it checked there."""
    manifest = package.manifest

    def lock() -> str:
        name, digest = manifest.application, manifest.digest
        answer = board.ask("begin", application=name, manifest=digest, by=person())
        outcome.old, outcome.new = answer["old"], answer["new"]
        outcome.recovered = answer["recovered"]
        runs = "runs now" if answer["is_loaded"] or not outcome.old else "is not loaded"
        return f"{name_of(outcome.old)} {runs}{_recovered(answer)}"

    def upload() -> str:
        sent = 0

        def advance(size: int) -> None:
            nonlocal sent
            sent += size
            progress(sent, package.size_bytes)

        # The manifest last: what it describes is then there.
        for file in sorted(package.files, key=lambda file: file == MANIFEST):
            board.upload(file, package.files[file], advance)
        return f"{package.size_bytes / 1e6:.2f} MB"

    def seal() -> str:
        board.ask("seal")
        return f"{len(manifest.files)} digests, the device's IDCODE" + (
            ", a trusted signature" if outcome.board["needs_signature"] else ""
        )

    return [
        Step(
            "lock",
            "Take the board's lock, so that no other deployment comes between; finish what an "
            "interrupted one left; write the journal.",
            lock,
            undo=lambda: _abort(board),
        ),
        Step(
            "upload",
            f"Send {package.size_bytes / 1e6:.2f} MB to a temporary folder on the board.",
            upload,
        ),
        Step(
            "check",
            "Have the board compute the digests of what has arrived on its disk, look into the "
            "bitstream and the overlay, and check the signature if it trusts keys.",
            seal,
        ),
    ]


def rollback_steps(board: Board, outcome: Outcome) -> list[Step]:
    """The steps that make the previous application the running one again."""

    def lock() -> str:
        answer = board.ask("rollback", by=person())
        outcome.recovered = answer["recovered"]
        if answer.get("done"):
            outcome.done = True
            return f"took back an interrupted deployment: {answer['recovered']}"
        outcome.old, outcome.new = answer["old"], answer["new"]
        return f"from {name_of(outcome.old)} to {name_of(outcome.new)}{_recovered(answer)}"

    return [
        Step(
            "lock",
            "Take the board's lock; finish what an interrupted deployment left, which may be all "
            "there is to do; write the journal.",
            lock,
            undo=lambda: _abort(board),
        ),
        *_activation(board, outcome, ""),
    ]


def _activation(board: Board, outcome: Outcome, settings: str) -> list[Step]:
    def install() -> str:
        board.ask("install")
        return f"/{FIRMWARE}/{outcome.new['name']}" if outcome.new else ""

    def load() -> str:
        return f"FPGA manager: {board.ask('load')['state']}"

    def verify() -> str:
        outcome.registers = board.ask("verify")["registers"]
        if not outcome.registers:
            return "not one of ours: no registers to read"
        return "ID {id:#010x}, version {version:#010x}".format(**outcome.registers)

    def confirm() -> str:
        answer = board.ask("confirm")
        outcome.done = True
        return f"previous: {name_of(answer['previous'])}"

    return [
        Step(
            "install",
            f"Unload the old one; move the new one to /{FIRMWARE} and keep what was there for a "
            "rollback.",
            install,
        ),
        Step(
            "load",
            f"Check the files again, {settings}load them and read the FPGA manager's state, which "
            "must be operating.",
            load,
        ),
        Step(
            "verify",
            "Read the overlay's ID and version registers; they must be what the manifest says.",
            verify,
        ),
        Step(
            "confirm",
            "Make it the one that counts and remember the one before. Whatever fails before this, "
            "a cut connection and lost power included, ends with the old one running.",
            confirm,
        ),
    ]


def settings(package: Package) -> dict[str, str]:
    """Clocks and port widths that a package sets, for people."""
    manifest = package.manifest
    clocks = (
        f"{name} = {megahertz(clock.hertz)}, {'/'.join(map(str, (clock.source, *clock.divisors)))}"
        for name, clock in sorted(manifest.clocks.items())
    )
    widths = (f"{port} {bits} bits" for port, bits in sorted(manifest.port_widths.items()))
    return {"clocks": ", ".join(clocks), "port widths": ", ".join(widths)}


def overlay_of(package: Package) -> str:
    """What a package's overlay was built with, beside what the board's description asks for."""
    built, asked = package.overlay, load_board(package.manifest.board.name).overlay
    if not {"PORTS", "COLUMNS", "ATTENTION"} <= built.keys():
        return "its .hwh does not say how it was built"
    text = f"{plural(built['PORTS'], 'port')}, {plural(built['COLUMNS'], 'column')}, "
    units = (
        (built["ATTENTION"], f"attention unit of {built['ATTENTION']} queries", asked.attention),
        (built.get("GLUE", 0), "glue unit", asked.glue),
    )
    return text + ", ".join(
        _unit(*unit) for unit in units if unit[0] or unit[2] or unit is units[0]
    )


def _unit(built: int, name: str, asked: int) -> str:
    if built:
        return name
    return f"no {name.split(' of ')[0]}" + (", which board.toml asks for" if asked else "")


def _settings(package: Package) -> str:
    return "".join(f"set {what} ({text}), " for what, text in settings(package).items() if text)


def _recovered(answer: dict[str, Any]) -> str:
    text = answer["recovered"]
    return f"; finished what was interrupted: {text}" if text else ""


def _abort(board: Board) -> None:
    board.ask("abort")
