"""A model larger than the memory for its experts: what it reaches, beside what it could.

    python -m tools.bench.random_bundle qwen3-30b-a3b BUNDLE
    edgerun doctor --calibrate BUNDLE
    python -m tools.bench.streaming BUNDLE [--share 25 50 75] [--tokens 32] [--prompt 512] [--json]

Forecasts there are of prompts of 512 and 4,096 tokens; other prompts stand beside that of 512.

Each share of all experts is measured in a process of its own, with nothing of the weights in the
system's cache before, which is checked afterwards: where more than 5% of the experts' pages are
there, the figures are those of another machine and the program ends with an error. Decoding is
measured once the slots are filled. Its limit is the slower of the disk, which has to bring what was
missed, and of memory, which is read whatever is missed; beside it stands that of whoever knows
experts two layers before they are needed, and none while what follows the last layer is computed
and the next token chosen (``offload/horizon.py``). The disk is measured right
before and after by reading experts in random order and doing nothing else: disks of virtual
machines are not every minute as fast as when they were calibrated, which is what the forecast goes
by.

The yardstick is to let the system bring experts by page faults, as programs do that map the file:
as many slabs as a token missed are copied out of a mapping, in random order and by as many threads
as compute, and nothing else; what that takes is added to computing with everything in memory, as
the forecast has it.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import edgerun
from edgerun.backends.cpu.experts.prefetch import REACH
from edgerun.cli.screen.report import peak_bytes
from edgerun.files.direct import DirectFile, span
from edgerun.formats.stack import ExpertStack
from edgerun.graph.slabs import Slab, slab
from edgerun.kernels.host.huge_pages import ReadBuffer
from edgerun.llm.llm import LLM
from edgerun.machine.disk import DiskProfile
from edgerun.machine.profile import machine_bandwidth
from tools.bench.offload.horizon import token_s
from tools.bench.page_cache import cached_pages

CACHED_SHARE = 0.05
SAMPLING: dict[str, Any] = {"temperature": 1.0, "seed": 0, "ignore_eos": True}
FAULT_TOKENS = 3
DISK_S = 0.5  # that its speed is measured
COLUMNS = {
    "share": "experts in memory",
    "hit_share": "hits",
    "missed_mb": "MB read a token",
    "disk_gb_per_s": "disk, GB/s",
    "recall": "foreseen",
    "tokens_per_s": "tokens/s",
    "limit_tokens_per_s": "limit",
    "of_limit": "of it",
    "of_horizon": "of the limit two layers ahead",
    "forecast_tokens_per_s": "forecast",
    "faults_tokens_per_s": "by page faults",
    "prompt_s": "prompt, s",
    "forecast_prompt_s": "forecast, s",
    "prompt_of_file": "read of the experts' file",
    "peak_over_mb": "MB beyond budget and weights",
}


@dataclass(frozen=True)
class Row:
    """What a budget came to; see ``COLUMNS``."""

    share: str
    hit_share: float
    missed_mb: float
    recall: float
    tokens_per_s: float
    limit_tokens_per_s: float
    of_limit: float
    of_horizon: float
    forecast_tokens_per_s: float
    faults_tokens_per_s: float
    prompt_s: float
    forecast_prompt_s: float
    prompt_of_file: float
    peak_over_mb: float
    cached_share: float
    load_s: float
    waited_share: float
    disk_gb_per_s: float


def main() -> int:
    """Measures what the command line names and prints a table, or JSON."""
    options = parser().parse_args()
    if options.only:
        row = measure(options.bundle, options.only, options.tokens, options.prompt)
        sys.stdout.write(json.dumps(asdict(row)) + "\n")
        return 0
    rows = [measured_apart(options, f"{share:g}%") for share in options.share]
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in table(rows))
    return int(any(row["cached_share"] > CACHED_SHARE for row in rows))


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    command_line = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command_line.add_argument("bundle", type=Path)
    command_line.add_argument("--share", type=float, nargs="+", default=[25.0, 50.0, 75.0])
    command_line.add_argument("--tokens", type=int, default=32)
    command_line.add_argument("--prompt", type=int, default=512)
    command_line.add_argument("--json", action="store_true")
    command_line.add_argument("--only", help=argparse.SUPPRESS)
    return command_line


def measured_apart(options: argparse.Namespace, share: str) -> dict[str, Any]:
    """The figures of one budget, from a process of its own."""
    command = [sys.executable, "-m", "tools.bench.streaming", str(options.bundle)]
    command += ["--only", share, "--tokens", str(options.tokens), "--prompt", str(options.prompt)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return row


def measure(folder: Path, share: str, tokens: int, prompt: int) -> Row:
    """Loads a model with memory for a share of its experts and lets it decode and read a prompt."""
    forget(folder)
    began = time.perf_counter()
    with edgerun.load(folder, backend="cpu", context=2 * prompt, expert_memory=share) as llm:
        load_s = time.perf_counter() - began
        forget(folder)  # what was read ahead with other weights
        expected, budget = llm.forecast(), llm.model.experts
        assert expected is not None
        assert budget is not None
        slabs = list(slabs_of(llm))
        fill(llm, tokens)
        disk_before = disk_speed(slabs, budget.disk)
        decode, steps, decode_s = spent(llm, ids(llm, 8, 1), tokens)
        disk_s = (disk_before + disk_speed(slabs, budget.disk)) / 2
        read, _, prompt_s = spent(llm, ids(llm, prompt, 2), 0)
        peak, cached = peak_bytes(), cached_share(slabs)
        # What was read early and in vain is no part of what anybody needed.
        wasted = decode.wasted * budget.layers[0].stored_bytes
        missed = (decode.read_bytes - wasted) / steps
        compute_s = llm.model.weight_bytes / machine_bandwidth(llm.model.threads)
        limit = 1 / max(missed / disk_s, compute_s)
        layer, layers = budget.layers[0], len(budget.layers)
        missing = missed / (layers * layer.top_k * layer.stored_bytes)
        read_s = layer.stored_bytes / disk_s
        after_s = bytes_after(llm) / machine_bandwidth(llm.model.threads)
        horizon_s = token_s(layers, layer.top_k, missing, read_s, compute_s, REACH, after_s)
        others = sum(
            each.nbytes
            for each in (llm.model.bundle.graph.constants.values() if llm.model.bundle else ())
            if not isinstance(each, ExpertStack)
        )
        faults_s = by_faults(slabs, missed, llm.model.threads)
        return Row(
            share=share,
            hit_share=decode.hit_share,
            missed_mb=decode.read_bytes / steps / 1e6,
            recall=decode.recall or 0.0,
            tokens_per_s=steps / decode_s,
            limit_tokens_per_s=limit,
            of_limit=steps / decode_s / limit,
            of_horizon=steps / decode_s * horizon_s,
            forecast_tokens_per_s=1 / expected.token_s,
            faults_tokens_per_s=1 / (expected.decode.seconds + faults_s),
            prompt_s=prompt_s,
            forecast_prompt_s=next(
                (each.seconds for each in expected.prompts if each.compute.rows == prompt),
                expected.prompt_s,
            ),
            prompt_of_file=read.read_bytes / budget.stored_bytes,
            peak_over_mb=(peak - budget.nbytes - others) / 1e6,
            cached_share=cached,
            load_s=load_s,
            waited_share=decode.waited_s / decode_s,
            disk_gb_per_s=disk_s / 1e9,
        )


def fill(llm: LLM, tokens: int) -> None:
    """Decodes until every slot has been filled, or nearly."""
    budget = llm.model.experts
    assert budget is not None
    for turn in range(64):
        llm.generate(ids(llm, 4, 100 + turn), max_tokens=tokens, **SAMPLING)
        reads = llm.expert_reads()
        if reads is not None and reads.misses >= 1.5 * budget.slots:
            return


def spent(llm: LLM, prompt: list[int], tokens: int) -> tuple[Any, int, float]:
    """Reads, steps and seconds of decoding after a prompt, or of the prompt for no tokens."""
    if tokens:
        llm.generate(prompt, max_tokens=1, **SAMPLING)
    before = llm.expert_reads()
    assert before is not None
    reply = llm.generate(prompt, max_tokens=max(1, tokens), **SAMPLING)
    after = llm.expert_reads()
    assert after is not None
    seconds = reply.stats.decode_s + reply.stats.prefill_s if tokens else reply.stats.prefill_s
    return after.since(before), max(1, tokens), seconds


def ids(llm: LLM, count: int, seed: int) -> list[int]:
    """Random tokens."""
    tokens = np.random.default_rng(seed).integers(0, llm.model.vocab_size, count)
    return [int(token) for token in tokens]


def slabs_of(llm: LLM) -> Iterator[Slab]:
    """Where the experts of a model lie."""
    assert llm.model.bundle is not None
    graph = llm.model.bundle.graph
    for node in graph.nodes:
        stacks = [graph.constants.get(name) for name in node.inputs]
        matrices = [each.matrices for each in stacks if isinstance(each, ExpertStack)]
        for expert in zip(*matrices, strict=True):
            piece = slab(expert)
            assert piece is not None
            yield piece


def bytes_after(llm: LLM) -> int:
    """Of weights behind the last layer of experts."""
    assert llm.model.bundle is not None
    graph, nbytes = llm.model.bundle.graph, 0
    for node in graph.nodes:
        constants = [graph.constants[name] for name in node.inputs if name in graph.constants]
        is_experts = any(isinstance(each, ExpertStack) for each in constants)
        nbytes = 0 if is_experts else nbytes + sum(each.nbytes for each in constants)
    return nbytes


def disk_speed(slabs: list[Slab], disk: DiskProfile) -> float:
    """Bytes a second that as many threads as the disk likes best read of experts now."""

    def read(seed: int) -> int:
        chance, done = random.Random(seed), 0
        buffer = ReadBuffer()
        while time.perf_counter() < end:
            piece = chance.choice(slabs)
            room = buffer.take(span(piece.offset, piece.length))
            done += len(file.read_into(piece.offset, piece.length, room))
        return done

    file = DirectFile(slabs[0].file.descriptor, slabs[0].file.check, direct=disk.is_direct)
    began = time.perf_counter()
    end = began + DISK_S
    with ThreadPoolExecutor(disk.threads) as pool:
        read_bytes = sum(pool.map(read, range(disk.threads)))
    return read_bytes / (time.perf_counter() - began)


def forget(folder: Path) -> None:
    """Takes the files of a model out of the system's cache."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def cached_share(slabs: list[Slab]) -> float:
    """The share of the experts' pages that are in the system's cache."""
    pages = cached_pages(slabs[0].file.descriptor)
    inside = [
        pages[each.offset // mmap.PAGESIZE : (each.offset + each.length) // mmap.PAGESIZE]
        for each in slabs
    ]
    return float(np.concatenate(inside).mean())


def by_faults(slabs: list[Slab], nbytes: float, threads: int) -> float:
    """Seconds a token in which so many bytes of experts are copied out of a new mapping."""
    descriptor = slabs[0].file.descriptor
    count = round(nbytes / slabs[0].length)
    if not count:
        return 0.0
    chosen = random.Random(0).sample(slabs, min(len(slabs), count * FAULT_TOKENS))
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    began = time.perf_counter()
    copy_mapped(descriptor, chosen, threads)
    seconds = time.perf_counter() - began
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return seconds * count / len(chosen)


def copy_mapped(descriptor: int, pieces: list[Slab], threads: int) -> None:
    """Copies pieces of a file out of a mapping of it, which is gone afterwards."""
    memory = np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), np.uint8)

    def copy(piece: Slab) -> None:
        memory[piece.offset : piece.offset + piece.length].copy()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(copy, pieces))


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of a table in Markdown."""
    yield f"| {' | '.join(COLUMNS.values())} |"
    yield "|---" * len(COLUMNS) + "|"
    for row in rows:
        cells = [row[name] for name in COLUMNS]
        shown = [each if isinstance(each, str) else f"{each:.3g}" for each in cells]
        yield f"| {' | '.join(shown)} |"


if __name__ == "__main__":
    sys.exit(main())
