"""From a bundle on disk to text, on the reference back-end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerun
from edgerun.backends import make_backend
from edgerun.cli.main import main
from edgerun.errors import BundleError, InputError
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph, Node
from edgerun.llm import loading
from edgerun.model.bundle import MANIFEST, open_bundle
from edgerun.plan.planner import make_plan
from edgerun.plan.streaming import streamed_bytes
from edgerun.plan.workload import affordable_rows
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of


def load(folder: Path, **options: Any) -> Any:
    return edgerun.load(folder, backend="reference", **options)


def test_greedy_text_equals_that_of_whole_forward_passes() -> None:
    with load(bundle_of("llama"), kv_cache="fp32", chunk_rows=3) as llm:
        prompt = [1, 5, 9, 2, 7]
        tokens = llm.generate(prompt, max_tokens=6, temperature=0, ignore_eos=True).ids
        ids = list(prompt)
        for _ in range(6):
            blocks = [block.copy() for block in llm.logits(ids)]
            ids.append(int(np.argmax(np.concatenate(blocks)[-1])))
    assert tokens == ids[len(prompt) :]


def test_a_loaded_model_knows_its_bundle() -> None:
    folder = bundle_of("llama")
    with load(folder, threads=1, context=32) as llm:
        model = llm.model
    assert model.path == folder
    assert len(model.digest) == 64
    assert (model.context, model.threads) == (32, 1)
    assert [backend.name for backend in model.backends] == ["reference"]
    assert 0 < model.weight_bytes <= (folder / "model.onnx.data").stat().st_size * 1.1


def test_a_bundle_is_called_as_its_folder_whichever_path_leads_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, link = tmp_path / "my-model", tmp_path / "link"
    (folder / "inside").mkdir(parents=True)
    link.symlink_to(folder)
    monkeypatch.chdir(folder)
    for path, name in ((".", "my-model"), ("inside/..", "my-model"), (link, "link")):
        assert loading.model_name(Path(path)) == name
    assert loading.model_name(Path("/")) == "edgerun"


def test_edgeruns_own_tokenizer_alone_runs_in_this_process(tmp_path: Path) -> None:
    shutil.copytree(loading.resolve(None), tmp_path / "copy")
    libraries = []
    for folder in (loading.resolve(None), tmp_path / "copy"):
        tokenizer = loading.read_tokenizer(open_bundle(folder), {})
        libraries.append(type(tokenizer._library).__name__)
    assert libraries == ["Library", "SandboxedLibrary"]


def test_trits_are_counted_as_what_they_take() -> None:
    graph = open_bundle(bundle_of("bitnet-master")).graph
    ternary = sum(
        weight.codes.nbytes
        for weight in graph.constants.values()
        if isinstance(weight, PackedWeight) and weight.format == "ternary"
    )

    def streamed(pack: str) -> int:
        backends = [make_backend("cpu", given={"pack": pack})]
        return streamed_bytes(make_plan(graph, backends), backends)

    saved = streamed("two_bits") - streamed("trits")
    assert saved == pytest.approx(ternary * (1 - 1.6 / 2), rel=0.01)


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(InputError, match="made for at most"):
        load(bundle_of("llama"), context=1 << 20)


@pytest.mark.parametrize(("width", "rows"), [(4096, 4096), (1 << 20, 16), (1 << 26, 1)])
def test_chunks_have_fewer_rows_where_values_are_very_wide(width: int, rows: int) -> None:
    weight = np.broadcast_to(np.float32(0), (width, 16))
    nodes = [
        Node("embedding", "table", ("ids", "rows"), ("x",)),
        Node("linear", "wide", ("x", "weight"), ("y",), {"activations": "float"}),
        Node("select_rows", "last", ("x",), ("chosen",)),
        Node("linear", "head", ("chosen", "vocabulary"), ("logits",), {"activations": "float"}),
    ]
    constants = {"rows": np.zeros((4, 16), np.float32), "weight": weight}
    constants["vocabulary"] = np.broadcast_to(np.float32(0), (1 << 27, 16))
    assert affordable_rows(Graph(nodes, [], ["logits"], constants)) == rows


@pytest.mark.parametrize(("count", "rows"), [(1, 1024), (63, 128), (1 << 14, 1)])
def test_chunks_have_fewer_rows_where_values_are_very_many(count: int, rows: int) -> None:
    """Buffers are taken again by values of their width, once nothing reads the ones before."""
    width = 1 << 14
    table = Node("embedding", "table", ("ids", "rows"), ("x0",))
    constants = {"rows": np.broadcast_to(np.float32(0), (4, width))}
    nodes = [Node("scale", f"s{n}", ("x0",), (f"x{n}",), {"factor": 1.0}) for n in range(1, count)]
    total = Node("add", "sum", ("x0", "x0"), ("y",))
    readers = [Node("add", f"a{n}", ("y", f"x{n}"), (f"y{n}",)) for n in range(1, count)]
    graph = Graph([table, *nodes, total, *readers], [], [], constants)
    assert affordable_rows(graph) == rows


def test_wide_layers_reach_the_back_ends_with_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgerun.plan.workload.MAX_VALUE_BYTES", 4 * 1024 * 20)
    with edgerun.load(backend="cpu", threads=1) as llm:
        assert llm.model.chunk_rows < 50
        assert llm.generate("Once upon a time there was a dog.", max_tokens=2, temperature=0)


def test_calls_append_no_more_than_windows_have_room_for(tmp_path: Path) -> None:
    for name, expected in (("mistral", 320), ("llama", 512)):
        bundle = AlteredBundle(bundle_of(name, weights="int4"), tmp_path / name)
        bundle.manifest["model"]["context_length"] = 4096
        with edgerun.load(bundle.save(), backend="reference", chunk_rows=512) as llm:
            assert llm.model.chunk_rows == expected


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(InputError, match="no back-end is called 'tpu'"):
        edgerun.load(bundle_of("llama"), backend="tpu")


def altered(folder: Path, target: Path, name: str, data: bytes) -> Path:
    """A copy of a bundle with one file replaced and the manifest made to agree."""
    import hashlib

    shutil.copytree(folder, target)
    (target / name).write_bytes(data)
    manifest = json.loads((target / MANIFEST).read_text())
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (target / MANIFEST).write_text(json.dumps(manifest))
    return target


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    from tests.support import fakes

    content = json.loads(fakes.byte_tokenizer_json())
    content["added_tokens"] += [
        {**content["added_tokens"][0], "id": 260 + index, "content": f"<{index}>"}
        for index in range(2000)
    ]
    folder = altered(
        bundle_of("llama"), tmp_path / "b", "tokenizer.json", json.dumps(content).encode()
    )
    with pytest.raises(BundleError, match="do not belong together"):
        load(folder)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"[" * 100_000])
def test_broken_configuration_is_a_bundle_error(tmp_path: Path, name: str, data: bytes) -> None:
    if not (bundle_of("llama") / name).exists():
        pytest.skip(f"this bundle has no {name}")
    with pytest.raises(BundleError, match=name):
        load(altered(bundle_of("llama"), tmp_path / "b", name, data))


@pytest.mark.parametrize("command", [["inspect"], ["inspect", "--tensors"], ["plan", "--explain"]])
def test_reports_describe_a_bundle(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(bundle_of("llama"))
    backend = ["--backend", "reference"] if command[0] == "plan" else []
    assert main([command[0], folder, *command[1:], *backend, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    if command[0] == "plan":
        assert {row["phase"] for row in report["placements"]} == {"prefill", "few", "decode"}
    else:
        assert report["model"]["architecture"] == "llama"
        assert sum(entry["tensors"] for entry in report["formats"].values()) > 0
        assert ("tensors" in report) == ("--tensors" in command)
    assert main([command[0], folder, *command[1:], *backend]) == 0
    assert capsys.readouterr().out


def test_a_token_is_one_native_call() -> None:
    with edgerun.load(bundle_of("llama"), backend="cpu", threads=1, draft="none") as llm:
        stats = llm.generate([5, 6, 7], max_tokens=9, ignore_eos=True).stats
        assert stats.decode_steps == 8
        for length in (20, 4):  # the first few rows were not worth a program of their own
            llm.generate(list(range(length, 2 * length)), max_tokens=1, ignore_eos=True)
        runs = {phase: counted.runs for phase, counted in llm.model.programs.launches.items()}
        assert runs == {"decode": 8, "few": 1, "prefill": 2}
