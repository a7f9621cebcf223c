"""Deploys to emulated boards with faults at a chosen action, and says whether the board works.

The helper runs in a forked child, so that a kill is a kill: nothing after it happens.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edgerun_hw.deploy.broker.application.manifest import MANIFEST
from edgerun_hw.deploy.broker.application.store import INCOMING, JOURNAL, KEPT
from edgerun_hw.deploy.broker.board.boards import BOARDS
from edgerun_hw.deploy.broker.board.loader import (
    FIRMWARE,
    MANAGER,
    NODE,
    OVERLAYS,
    SEARCH_PATH,
    XMUTIL,
)
from edgerun_hw.deploy.broker.session import Session
from edgerun_hw.deploy.emulate.board import (
    FAULTS,
    LOGIC,
    SIGNALS,
    EmulatedSystem,
    Faults,
    make_root,
    set_faults,
)
from edgerun_hw.deploy.emulate.dfx_mgr import DEFAULT_RELEASE
from edgerun_hw.deploy.emulate.example_bit import example_bit
from edgerun_hw.deploy.emulate.fuzz import Script
from edgerun_hw.deploy.emulate.sample import sample_package

KV260 = BOARDS["kv260"]
LOADERS = pytest.mark.parametrize("xmutil", [True, False], ids=["xmutil", "sysfs"])
Files = Mapping[str, bytes]


def application(seed: int) -> dict[str, bytes]:
    """A package whose bitstream differs with the seed."""
    return sample_package(example_bit(KV260, seed))


def digest_of(files: Files) -> str:
    return hashlib.sha256(files[MANIFEST]).hexdigest()


def resealed(files: Files, changed: Files) -> dict[str, bytes]:
    """Files of which some were changed, with a manifest that is right about them."""
    manifest = json.loads(files[MANIFEST])
    for name, data in changed.items():
        manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return {**files, **changed, MANIFEST: json.dumps(manifest).encode()}


@dataclass
class Conversation:
    """What a helper answered before it ended."""

    answers: list[dict[str, Any]] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)

    @property
    def error(self) -> dict[str, Any] | None:
        return next((a["error"] for a in self.answers if not a["ok"]), None)

    @property
    def is_confirmed(self) -> bool:
        return any("active" in answer and "previous" in answer for answer in self.answers)


class Quick(EmulatedSystem):
    """Does not wait for the disk."""

    def sync(self, descriptor: int) -> None:
        pass


def deployment(files: Files, sent: Files | None = None) -> list[tuple[str, bytes, dict[str, Any]]]:
    """The requests of a deployment; ``sent`` are files that were changed on their way."""
    name = json.loads(files[MANIFEST])["application"]
    steps: list[tuple[str, bytes, dict[str, Any]]] = [
        ("begin", b"", {"application": name, "manifest": digest_of(files), "by": "test"})
    ]
    for name, data in {**files, **(sent or {})}.items():
        steps.append(("put", b"", {"file": name, "size": len(data)}))
        steps.append(("chunk", data, {"size": len(data)}))
    return steps + [(op, b"", {}) for op in ("seal", *CHANGE)]


CHANGE = ("install", "load", "verify", "confirm")
ROLLBACK: list[tuple[str, bytes, dict[str, Any]]] = [
    ("rollback", b"", {"by": "test"}),
    *((op, b"", {}) for op in CHANGE),
]


def converse(root: Path, steps: list[tuple[str, bytes, dict[str, Any]]]) -> Conversation:
    """Goes through the steps until one fails; without a signal in the faults, in this process."""
    faults = json.loads((root / FAULTS).read_text()) if (root / FAULTS).exists() else {}
    kinds = [faults[f"{then}kind"] for then in ("", "then_") if faults.get(f"{then}at")]
    if not SIGNALS.keys().isdisjoint(kinds):
        return _in_child(root, steps)
    return _serve(root, steps)


def _serve(root: Path, steps: list[tuple[str, bytes, dict[str, Any]]]) -> Conversation:
    lines = (json.dumps({"op": op, **f}).encode() + b"\n" + data for op, data, f in steps)
    channel, result = Script(b"".join(lines)), Conversation()
    Session(Quick(root, result.actions), channel).serve()
    for answer in channel.answers:
        result.answers.append(answer)
        if not answer["ok"] or answer.get("done"):
            break
    return result


def _in_child(root: Path, steps: list[tuple[str, bytes, dict[str, Any]]]) -> Conversation:
    """Nothing but what the helper wrote to disk survives it."""
    child = os.fork()
    if child == 0:
        try:
            (root / ".emulator" / "answers").write_bytes(pickle.dumps(_serve(root, steps)))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    answers = root / ".emulator" / "answers"
    return pickle.loads(answers.read_bytes()) if answers.exists() else Conversation()


def deploy(root: Path, files: Files) -> Conversation:
    return converse(root, deployment(files))


def ask(root: Path, op: str, **fields: Any) -> dict[str, Any]:
    """One request to a helper of its own, without faults."""
    without_faults(root)
    answer = converse(root, [(op, b"", fields)]).answers[0]
    assert answer["ok"], answer
    return answer


def without_faults(root: Path) -> None:
    (root / FAULTS).unlink(missing_ok=True)


def running(root: Path) -> str | None:
    """Digest of the application that the emulated board really runs; checks that it is whole.

    Looks at the board's files and the emulator's state alone, and believes no helper.
    """
    logic = json.loads((root / LOGIC).read_text()) if (root / LOGIC).exists() else {}
    has_xmutil = (root / XMUTIL).exists()
    if logic.get("loaded") is None or not (
        logic["application"] if has_xmutil else (root / NODE).exists()
    ):
        assert not list((root / OVERLAYS).iterdir())  # none is left that dfx-mgr has forgotten
        return None
    assert (root / MANAGER / "state").read_text() == "operating\n"
    name = logic["loaded"].removesuffix(".bit.bin")
    (node,) = (root / OVERLAYS).iterdir()  # the region takes one, and none is forgotten
    assert (node / "status").read_text() == "applied\n"
    if has_xmutil:
        assert logic["application"] == name and node.name.startswith(f"{name}_image_")
    else:
        assert node == root / NODE
        assert (root / SEARCH_PATH).read_text() == "\n"
    folder = root / FIRMWARE / name
    manifest = json.loads((folder / MANIFEST).read_bytes())
    for file, entry in manifest["files"].items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == entry["sha256"]
    return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()


def check_tidy(root: Path) -> None:
    """Nothing is left over of what has been given up."""
    assert not (root / JOURNAL).exists()
    assert not (root / INCOMING).exists()
    packages = list((root / KEPT).iterdir()) if (root / KEPT).exists() else []
    assert len(packages) <= 1
    assert not list((root / FIRMWARE).glob("*.new"))


def board(
    root: Path, xmutil: bool = True, *applications: Files, release: str = DEFAULT_RELEASE
) -> Path:
    """Makes a board and deploys applications to it, one after the other."""
    make_root(root, xmutil=xmutil, release=release)
    for files in applications:
        assert deploy(root, files).is_confirmed
    return root


def copies(original: Path) -> Callable[[Faults], Path]:
    """Makes a function that copies a board for one more fault; the copy before it is removed."""
    folder = Path(tempfile.mkdtemp(dir=original.parent))

    def copy(faults: Faults) -> Path:
        shutil.rmtree(folder)
        shutil.copytree(original, folder)
        set_faults(folder, faults)
        return folder

    return copy


def package(run: Any, name: str, *more: object) -> str:
    """Packages a bitstream of the current folder with the command; returns the digest."""
    arguments = ("package", f"{name}.bit", "-b", "kv260", "--base", "0xA0000000", "-o", name)
    code, out, err = run(*arguments, "--json", *more)
    assert code == 0, err
    return json.loads(out)["digest"]
