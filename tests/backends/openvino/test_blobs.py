"""Blobs are used only if they are whole, ours, and of the same model, device and options."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import edgerun
from edgerun.backends.base import CompileOptions, Phase, Shape
from edgerun.backends.openvino import maker
from edgerun.backends.openvino.blobs import SUFFIX, Blobs, name_of
from edgerun.backends.openvino.session import Session
from edgerun.backends.registry import make_backend
from edgerun.errors import BundleError
from edgerun.model.bundle import open_bundle
from edgerun.plan.routes import prompt_graph
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore
from tests.backends.openvino.conftest import Altered
from tests.backends.openvino.test_places import ids_of
from tests.support.bundles import bundle_of

openvino = pytest.importorskip("openvino")

TRIALS = 500
BLOB = bytes(range(256)) * 8


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path, max_bytes=1 << 16)


def file_of(folder: Path) -> Path:
    """The largest file: the others say which options were right."""
    return max((folder / "openvino").glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_size)


def altered(whole: bytes, foreign: bytes, trial: int, rng: random.Random) -> bytes:
    """A file with a flipped bit, cut off, with more behind it, or another's, in turns."""
    data = bytearray(whole)
    match trial % 4:
        case 0:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del data[rng.randrange(len(data)) :]
        case 2:
            data += rng.randbytes(rng.randrange(1, 9))
        case 3:
            data[:] = foreign
    return bytes(data)


def test_what_was_altered_is_not_loaded(blobs: Blobs, tmp_path: Path) -> None:
    """Bits turned over, cut off, something appended, or another's content."""
    rng = random.Random(1)
    blobs.save("other", BLOB[::-1])
    foreign = file_of(tmp_path).read_bytes()
    blobs.remove("other")
    blobs.save("name", BLOB)
    path = file_of(tmp_path)
    whole = path.read_bytes()
    for trial in range(TRIALS):
        path.write_bytes(altered(whole, foreign[: rng.randrange(33)] or foreign, trial, rng))
        assert blobs.load("name") is None, trial
    path.write_bytes(whole)
    assert blobs.load("name") == BLOB


def test_others_files_are_not_loaded(blobs: Blobs, tmp_path: Path) -> None:
    blobs.save("name", BLOB)
    path = file_of(tmp_path)
    path.chmod(0o666)
    assert blobs.load("name") is None
    path.chmod(0o600)
    moved = path.rename(tmp_path / "moved")
    path.symlink_to(moved)
    assert blobs.load("name") is None


def test_the_least_recently_used_go_first(blobs: Blobs, tmp_path: Path) -> None:
    part = b"x" * (1 << 14)
    for index, name in enumerate("abc"):
        blobs.save(name, part)
        os.utime(tmp_path / "openvino" / f"{name}{SUFFIX}", (index, index))
    assert blobs.load("a") == part  # which is a use
    blobs.save("d", part)
    assert {name: blobs.load(name) is not None for name in "abcd"} == {
        "a": True,
        "b": False,
        "c": True,
        "d": True,
    }


def test_one_blob_may_be_larger_than_all_are_to_be(blobs: Blobs, tmp_path: Path) -> None:
    """There is no other way from the process that compiled it."""
    folder = tmp_path / "openvino"
    for age, name in enumerate(("a", "large", "b")):
        blobs.save(name, b"x" * (1 << 17) if name == "large" else BLOB)
        os.utime(folder / f"{name}{SUFFIX}", (age, age))
    assert {path.stem for path in folder.iterdir()} == {"a", "large", "b"}
    blobs.save("larger", b"x" * (1 << 18))
    assert {path.stem for path in folder.iterdir()} == {"b", "larger"}
    assert blobs.load("larger") == b"x" * (1 << 18)


@pytest.mark.parametrize("step", ["glob", "sorted"])
def test_two_processes_make_room_at_once(
    step: str, blobs: Blobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other removes what this one has just found, or is about to."""
    part = b"x" * (3 << 14)
    blobs.save("a", part)
    glob = Path.glob

    def remove_after(entries: Iterable[Any], **options: Any) -> list[Any]:
        listed = sorted(entries, **options)
        blobs.remove("a")
        return listed

    if step == "glob":
        monkeypatch.setattr(Path, "glob", lambda *given: remove_after(glob(*given)))
    else:
        monkeypatch.setattr("edgerun.backends.openvino.blobs.sorted", remove_after, raising=False)
    blobs.save("b", part)
    monkeypatch.undo()
    assert blobs.load("b") == part and not caplog.records


def test_a_folder_that_cannot_be_used_costs_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "openvino").write_text("no folder")
    blobs = Blobs(tmp_path)
    for _ in range(2):
        with blobs.locked("name"):
            blobs.save("name", BLOB)
        assert blobs.load("name") is None
    assert len(caplog.records) == 1
    assert "networks are compiled at every start" in caplog.text
    assert "set EDGERUN_CACHE" in caplog.text


def test_one_at_a_time_makes_a_blob(tmp_path: Path) -> None:
    """Many wait for each other, each sees what was made, and no lock is left behind."""
    saved, inside = [], []

    def work() -> None:
        blobs = Blobs(tmp_path)
        with blobs.locked("name"):
            inside.append(1)
            assert len(inside) == 1
            if blobs.load("name") is None:
                time.sleep(0.05)
                blobs.save("name", BLOB)
                saved.append(1)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (saved, inside) == ([1], [])
    assert [path.suffix for path in (tmp_path / "openvino").iterdir()] == [SUFFIX]


def test_names_tell_parts_apart() -> None:
    names = [name_of(parts) for parts in (("a", "b"), ("ab",), ("b", "a"), ("a", ("b",)), ())]
    assert len(set(names)) == len(names)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was compiled and loaded."""
    done: list[str] = []
    for name in ("compile", "load"):
        original = getattr(Session, name)

        def noting(
            session: Session, *given: Any, name: str = name, original: Any = original
        ) -> Any:
            done.append(name)
            return original(session, *given)

        monkeypatch.setattr(Session, name, noting)
    yield done


def ids(name: str = "llama", device: str = "CPU", **options: str) -> list[int]:
    folder = bundle_of(name, **({"weights": "fp32"} | options))
    with edgerun.load(folder, place=f"prefill=openvino:{device}", threads=1) as llm:
        return llm.generate(ids_of(name), temperature=0, max_tokens=16, ignore_eos=True).ids


@pytest.mark.parametrize("device", ["CPU", "NPUW-CPU"])
def test_a_second_start_loads_with_the_options_that_were_right(
    calls: list[str], device: str
) -> None:
    first = ids("qwen3", device, weights="int4", activations="fp32")
    assert set(calls) == {"compile"}  # once for each of the options that were tried
    calls.clear()
    assert ids("qwen3", device, weights="int4", activations="fp32") == first
    assert calls == ["load"]


@pytest.mark.parametrize("device", ["CPU", "NPUW-CPU"])
def test_what_was_loaded_computes_the_bits_that_what_was_compiled_does(
    device: str, calls: list[str]
) -> None:
    """An option that a blob does not keep would make a second start compute something else."""
    prompt, blocks = ids_of("llama", 64), []
    for _ in range(2):
        with edgerun.load(
            bundle_of("llama", weights="int4"), place=f"prefill=openvino:{device}", threads=1
        ) as llm:
            store = SequenceStore(llm.model.states, 80)
            slot = store.open()
            store.reserve(slot, 64)
            llm.model.programs.run(Batch.of(prompt, 0, slot, logits="none"), store)
            blocks.append([store.read_block(s.name, slot, 0, 64) for s in store.states])
    assert calls[-1] == "load"
    assert all(np.array_equal(*pair) for pair in zip(*map(np.array, blocks), strict=True))


def test_another_model_device_or_version_compiles(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids()
    ids(weights="int8", activations="fp32")  # the same shapes, other weights
    assert calls == ["compile"] * 2
    ids(device="NPUW-CPU")
    assert set(calls) == {"compile"}
    calls.clear()
    monkeypatch.setattr(openvino, "__version__", "2026.5.0")
    ids()
    assert calls == ["compile"]


def test_nothing_is_kept_of_weights_that_no_digest_covers(calls: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    shutil.copytree(bundle_of("llama", weights="fp32"), folder)
    (folder / "manifest.json").unlink()
    for _ in range(2):
        with edgerun.load(folder, place="prefill=openvino:CPU", threads=1):
            pass
    assert calls == ["compile"] * 2
    assert not (tmp_path / "openvino").exists()


@pytest.mark.parametrize("kind", ["flipped", "refused", "wrong"])
def test_what_cannot_be_used_is_compiled_again(
    kind: str, calls: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = ids()
    path, load = file_of(tmp_path), Session.load
    if kind == "flipped":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif kind == "refused":
        blobs = Blobs(tmp_path)
        blobs.save(path.name.removesuffix(SUFFIX), b"no blob of OpenVINO's")
    else:
        double = lambda arrays, out: [2 * array for array in out]  # noqa: E731
        monkeypatch.setattr(Session, "load", lambda *given: Altered(load(*given), double))
    assert ids() == expected
    assert calls == ["compile", *(["load"] if kind != "flipped" else []), "compile"]
    monkeypatch.setattr(Session, "load", load)
    assert ids() == expected
    assert calls[-1] == "load"


def test_nothing_is_kept_of_weights_that_were_altered(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def altered() -> None:
        raise BundleError("model.onnx.data does not match the digest in the manifest")

    init = maker.NetworkMaker.__init__

    def distrusting(self: Any, segment: Any, session: Any, options: Any, *others: Any) -> None:
        init(self, segment, session, replace(options, verified=altered), *others)

    monkeypatch.setattr(maker.NetworkMaker, "__init__", distrusting)
    with pytest.raises(BundleError, match="does not match the digest"):
        ids()
    assert not list((tmp_path / "openvino").glob(f"*{SUFFIX}"))


WORKER = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
import edgerun
from edgerun.backends.openvino import executable
from edgerun.backends.openvino.session import Session
executable.settings = lambda: SimpleNamespace(cache_dir=Path(sys.argv[2]))
done = []
for name in ("compile", "load"):
    def noting(*given, name=name, original=getattr(Session, name)):
        done.append(name)
        return original(*given)
    setattr(Session, name, noting)
with edgerun.load(sys.argv[1], place="prefill=openvino:CPU", threads=1):
    print(json.dumps(done))
"""


def test_two_processes_compile_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(bundle_of("llama", weights="fp32")), str(tmp_path)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    done = [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
    assert sorted(map(tuple, done)) == [("compile",), ("load",)]


def test_a_process_that_is_killed_leaves_nothing_half_written(tmp_path: Path) -> None:
    hang = "import time\nSession.compile = lambda *_: (print('now', flush=True), time.sleep(900))\n"
    code = WORKER.replace("with edgerun", f"{hang}with edgerun")
    command = [sys.executable, "-c", code, str(bundle_of("llama", weights="fp32")), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "now\n"
        worker.kill()
    assert [path.suffix for path in (tmp_path / "openvino").iterdir()] == [".lock"]
    command[2] = WORKER
    # Nobody waits for the dead, which was to hang for longer.
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert json.loads(done.stdout) == ["compile"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whatever_became_of_a_blob_the_numbers_are_the_same_and_it_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]
) -> None:
    """Flipped bits, cut off, longer, of other weights, of another version: 500 starts."""
    rng, ids = random.Random(2), ids_of("llama", 30)
    others = {name: bundle_of("llama", weights=name) for name in ("int8", "int4")}

    def start(folder: Path) -> list[NDArray[np.float32]]:
        bundle = open_bundle(folder)
        states = states_of(bundle.graph, bundle.config, "fp32")
        cpu, device = make_backend("cpu"), make_backend("openvino", "CPU", {"threads": 1})
        options = CompileOptions(
            states,
            fallback=lambda segment, shape: cpu.compile(segment, shape, CompileOptions(states)),
            digest=bundle.digest,
        )
        program = device.compile(prompt_graph(bundle.graph), Shape(Phase.PREFILL, 64), options)
        store = SequenceStore(states, 64)
        slot = store.open()
        store.reserve(slot, 30)
        program(Batch.of(ids, 0, slot, logits="none"), store)
        for each in (program, device, cpu):
            each.close()
        return [part for s in states for part in store.read_block(s.name, slot, 0, 30)]

    folder = bundle_of("llama", weights="fp32")
    expected = start(folder)
    path = file_of(tmp_path)
    whole, foreign = path.read_bytes(), []
    for name, other in others.items():
        before = set(path.parent.iterdir())
        with monkeypatch.context() as patch:
            patch.setattr(openvino, "__version__", f"2026.5.{name}")
            start(other)
        added = set(path.parent.iterdir()).difference(before)
        foreign.append(max((each.read_bytes() for each in added), key=len))
    assert calls.count("compile") == 3
    for trial in range(TRIALS):
        data = altered(whole, foreign[trial // 4 % 2], trial, rng)
        path.write_bytes(data)
        for ours, right in zip(start(folder), expected, strict=True):
            assert np.array_equal(ours, right), trial
        assert path.read_bytes() != data, trial
