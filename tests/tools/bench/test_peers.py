"""The comparison with other runtimes, without any of them."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
STEADY = {"tokens_per_s": 20.0, "own_cores": 2.0, "other_cores": 0.0}
# Stands for `python -m tools.bench.peers.worker` in a process test: says it is ready and obeys.
OBEDIENT = "import sys; print('{}', flush=True); [print(line, flush=True) for line in sys.stdin]"
DYING = "import sys; print('{}', flush=True); sys.exit('no such model')"


def test_memory_is_read_from_status() -> None:
    from tools.bench.peers.usage import parse_status

    text = "Name:\tx\nVmHWM:\t 16 kB\nVmRSS:\t  12 kB\nRssAnon:\t 8 kB\nRssFile:\t 4 kB\n"
    assert parse_status(text) == {
        "peak_bytes": 16384,
        "rss_bytes": 12288,
        "anon_bytes": 8192,
        "file_bytes": 4096,
    }


def test_end_of_a_process_is_described() -> None:
    from tools.bench.peers.process import describe_end

    assert describe_end(-11, "") == "killed by signal 11 (SIGSEGV)"
    assert "want of memory" in describe_end(-9, "")
    assert describe_end(1, "0\n1\n\n2\n3\n4\n5\n6\n") == ("ended with status 1: 1; 2; 3; 4; 5; 6")


class FakeRunner:
    version, vocab_size = "0", 50

    def __init__(self) -> None:
        self.calls: list[int] = []

    def reset(self) -> None:
        self.calls.append(0)

    def run(self, ids: list[int]) -> int:
        assert all(0 <= id_ < self.vocab_size for id_ in ids)
        self.calls.append(len(ids))
        return 0


def test_worker_decodes_token_by_token_and_prefills_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tools.bench.peers import worker as module

    monkeypatch.setattr(module, "MIN_SECONDS", 1e-9)
    runner = FakeRunner()
    worker = module.Worker(runner)
    reply = worker.answer({"do": "decode", "prompt": 5, "tokens": 3})
    assert runner.calls == [0, 5, 1, 1, 1]
    assert reply["tokens_per_s"] > 0
    worker.answer({"do": "prefill", "tokens": 7})
    assert runner.calls[-2:] == [0, 7]


def test_worker_fills_a_context_in_pieces_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.bench.peers import worker as module

    monkeypatch.setattr(module, "PIECE_TOKENS", 8)
    runner = FakeRunner()
    worker = module.Worker(runner)
    assert worker.answer({"do": "extend", "to": 20, "first": True})["tokens"] == 20
    assert runner.calls == [0, 8, 8, 4]
    worker.answer({"do": "steps", "tokens": 2})
    assert worker.answer({"do": "extend", "to": 30, "first": False})["tokens"] == 8
    assert runner.calls[4:] == [1, 1, 8]


@pytest.fixture
def make_peer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    from tools.bench.peers import process

    started: list[Any] = []
    start = process.subprocess.Popen

    def make(script: str) -> Any:
        def popen(command: list[str], **options: Any) -> Any:
            return start([sys.executable, "-c", script], **options)

        monkeypatch.setattr(process.subprocess, "Popen", popen)
        spec = process.PeerSpec("llamacpp", "tq2_0", tmp_path, sys.executable)
        started.append(process.Peer(spec, 1, 8))
        return started[-1]

    yield make
    for peer in started:
        peer.close()


def test_peer_answers_commands(make_peer: Any) -> None:
    peer = make_peer(OBEDIENT)
    assert peer.ready(30) == {}
    assert peer.ask(30, do="prefill", tokens=3) == {"do": "prefill", "tokens": 3}


def test_peer_that_dies_is_an_error_with_its_last_words(make_peer: Any) -> None:
    from tools.bench.peers.process import PeerError

    peer = make_peer(DYING)
    peer.ready(30)
    with pytest.raises(PeerError, match="status 1: no such model"):
        peer.ask(30, do="state")


def test_missing_interpreter_is_an_error(tmp_path: Path) -> None:
    from tools.bench.peers.process import Peer, PeerError, PeerSpec

    spec = PeerSpec("llamacpp", "tq2_0", tmp_path, str(tmp_path / "python"))
    with pytest.raises(PeerError, match="cannot start"):
        Peer(spec, 1, 8)


def entry_that(monkeypatch: pytest.MonkeyPatch, folder: Path, replies: list[Any]) -> Any:
    from tools.bench.peers.entry import Entry
    from tools.bench.peers.process import PeerSpec

    waiting = iter(replies)
    monkeypatch.setattr(Entry, "ask", lambda self, **command: next(waiting))
    return Entry(PeerSpec("edgerun", "int8", folder, "python"))


def test_disturbed_samples_are_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    disturbed = STEADY | {"tokens_per_s": 5.0, "other_cores": 1.0}
    entry = entry_that(monkeypatch, tmp_path, [disturbed, STEADY, None])
    entry.sample("decode", 0.15, do="decode")
    assert (entry.samples, entry.others) == ({"decode": [20.0]}, [0.0])
    entry.sample("decode", 0.15, do="decode")  # a peer that died adds nothing
    assert entry.samples == {"decode": [20.0]}


def test_of_disturbed_samples_the_least_disturbed_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replies = [
        STEADY | {"tokens_per_s": speed, "other_cores": others}
        for speed, others in ((1.0, 0.9), (2.0, 0.3), (3.0, 0.6))
    ]
    entry = entry_that(monkeypatch, tmp_path, replies)
    entry.sample("decode", 0.15, do="decode")
    assert entry.samples == {"decode": [2.0]}


def test_everyone_takes_a_turn_in_every_round() -> None:
    from tools.bench.peers import measure

    asked: list[tuple[str, str]] = []

    class Listener:
        def __init__(self, name: str) -> None:
            self.name = name

        def sample(self, what: str, quiet: float, **command: Any) -> None:
            asked.append((self.name, what))

        def ask(self, **command: Any) -> None:
            asked.append((self.name, f"{command['do']} {command['to']}"))

    ticks: list[int] = []
    arguments = Namespace(
        rounds=2, prefill=[8], prompt=1, decode=1, quiet=1, points=[4, 16], what="context"
    )
    entries: Any = [Listener("a"), Listener("b")]
    measure.compare(entries, arguments, lambda: ticks.append(len(asked)))
    assert asked == [(name, what) for name in "ab" for what in ("decode", "prefill-8")] * 2
    assert ticks == [4, 8]
    asked.clear()
    measure.context(entries, arguments, lambda: None)
    assert asked[:4] == [("a", "extend 4"), ("b", "extend 4"), ("a", "decode@4"), ("b", "decode@4")]
    assert measure.room(arguments) > 16


def run_supervised(tmp_path: Path, body: str) -> Any:
    script = tmp_path / "script.py"
    script.write_text(
        f"import os, signal, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tools.bench.peers.supervise import FLAG, supervised\n"
        "if FLAG not in sys.argv:\n    sys.exit(supervised(sys.argv))\n" + body
    )
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_bench_that_is_killed_says_so(tmp_path: Path) -> None:
    done = run_supervised(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)\n")
    assert done.returncode == 128 + 9
    assert "killed by SIGKILL" in done.stderr
    done = run_supervised(tmp_path, "sys.exit('no peer ran')\n")
    assert done.returncode == 1
    assert "no peer ran" in done.stderr
    assert "exit code 1" in done.stderr
    done = run_supervised(tmp_path, "print('{}')\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "{}\n", "")


def test_bandwidth_is_measured_over_a_whole_buffer() -> None:
    from tools.bench.peers.bandwidth import CHUNK_WORDS, BandwidthMeter

    meter = BandwidthMeter(2, buffer_bytes=3 * 8 * CHUNK_WORDS)
    assert meter.measure(passes=1) > 1e8
    meter.close()


def test_gguf_is_what_the_exporter_reads_as_ternary(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    import gguf

    from tools.bench.peers import models
    from tools.bench.peers.gguf_files import random_file

    path = tmp_path / "model.gguf"
    random_file.write(models.config("tiny"), path, "tq2_0")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    head = tensors["token_embd.weight"]
    assert head.tensor_type == gguf.GGMLQuantizationType.Q6_K
    assert list(head.shape) == [256, 1024]
    down = tensors["blk.1.ffn_down.weight"]
    values = gguf.dequantize(down.data, down.tensor_type)
    assert values.shape == (256, 512)
    scale = np.abs(values).max()
    assert set(np.unique(values / scale)) == {-1.0, 0.0, 1.0}


def test_a_token_reads_its_experts_and_the_head(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    import gguf

    from tools.bench.peers import models
    from tools.bench.peers.gguf_files import random_file

    config = {
        **models.config("olmoe-1b-7b"),
        "hidden_size": 256,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "vocab_size": 512,
    }
    path = tmp_path / "model.gguf"
    random_file.write(config, path, "q4_0")
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.architecture"].contents() == "olmoe"
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    up, router = tensors["blk.1.ffn_up_exps.weight"], tensors["blk.1.ffn_gate_inp.weight"]
    assert list(up.shape) == [256, 64, 64]
    assert len(np.unique(router.data)) > 1000  # it chooses
    assert list(tensors["blk.0.attn_q_norm.weight"].shape) == [256]
    experts = sum(tensor.n_bytes for name, tensor in tensors.items() if "_exps" in name)
    others = sum(tensor.n_bytes for tensor in reader.tensors) - experts
    table = tensors["token_embd.weight"].n_bytes
    assert random_file.token_bytes(path) == others - table + experts // 8


@pytest.mark.parametrize(
    "preset",
    ["bitnet-2b-4t", "llama-3.2-1b", "olmoe-1b-7b", "qwen3-30b-a3b-8", "default", "small"],
)
def test_gguf_has_what_each_shape_needs(preset: str) -> None:
    pytest.importorskip("gguf")
    from tools.bench.peers import models
    from tools.bench.peers.gguf_files import random_file

    config = models.config(preset)
    shapes = random_file.tensor_shapes(config, random_file.BODY_TYPES["q4_0"])
    names = {name.removeprefix("blk.0.") for name in shapes if name.startswith("blk.0.")}
    assert ("attn_sub_norm.weight" in names) == (config["model_type"] == "bitnet")
    _, (rows, columns) = shapes["blk.0.attn_k.weight"]
    assert columns == config["hidden_size"]
    assert rows % config["num_key_value_heads"] == 0


@pytest.mark.parametrize("preset", ["granite-4-h-1b", "qwen3.5-0.8b"])
def test_files_of_models_that_seldom_attend_have_what_their_family_has(
    preset: str, tmp_path: Path
) -> None:
    pytest.importorskip("gguf")
    from edgerun_export.checkpoint import open_checkpoint
    from edgerun_export.source.model import interpret
    from tools.bench.peers import models
    from tools.bench.peers.gguf_files import random_file

    config = models.config(preset)
    layers = 6 if "layer_types" in config else 4
    config |= {"num_hidden_layers": layers, "vocab_size": 256}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    path = tmp_path / "model.gguf"
    random_file.write(config, path, "q4_0")
    with open_checkpoint(str(path)) as checkpoint:
        weights, warnings = interpret(checkpoint)  # which refuses tensors without a place
        assert weights.spec.num_layers == layers and not warnings
        assert 0 < sum(map(weights.spec.attends, range(layers))) < layers


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tiny", "--peers", "abacus:1"], "no peer 'abacus:1'"),
        (["tiny", "--only", "onnxruntime:int3"], "no bundle 'int3'"),
        (["tiny", "--only", "edgerun"], "no peer 'edgerun'"),
    ],
)
def test_unknown_peers_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], words: str
) -> None:
    from tools.bench.peers import __main__ as bench

    monkeypatch.setattr(sys, "argv", ["peers", *arguments, "--work", str(tmp_path)])
    with pytest.raises(SystemExit, match=words):
        bench.parse_arguments()
