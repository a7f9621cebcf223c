"""A GPU of NVIDIA's, measured step by step; what comes out is a profile for the simulator.

    python -m tools.bench.cuda [--device 0] [--profile my-gpu.json] [--title TEXT]
        [--experts 24 --top-k 8 --hidden 2048 --width 1024] [--rows 1 8 64]
        [--models OLMOE_BUNDLE QWEN3_BUNDLE] [--share 0.1 0.25 0.5] [--tokens 64]
        [--gguf OLMOE.gguf QWEN3.gguf --llama-bench PATH]

In this order: copies to the GPU from pinned memory and from other memory; the launch of a kernel;
an expert's product at some rows, over all experts in turn, so that no cache holds them (at one row
we want half of the memory's speed, which is for the reader to know); layers shared with the
processor, measured against planned; and tokens a second of bundles whose experts have room on the
GPU in part (``tools/bench/random_bundle.py`` makes them in the shapes of Qwen3-30B and others).
``--gguf`` asks llama.cpp's ``llama-bench`` for the same with ``-ncmoe``, at as many experts there.
``--profile`` writes what was seen as ``python -m tools.bench.offload --devices FILE`` reads it.

Without a GPU it says so and measures nothing. In Numba's simulator (``NUMBA_ENABLE_CUDASIM=1``) it
runs at sizes of tens, for tests: what it prints then says "simulated" and is no time of any GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgerun.backends import CompileOptions
from edgerun.backends.base import Shape
from edgerun.backends.cpu import CpuBackend
from edgerun.offload.cuda import CudaBackend
from edgerun.offload.cuda.gpu import gpu_support
from edgerun.offload.sharing.device import DeviceSizes
from edgerun.offload.sharing.layer import Layer
from tools.bench.cuda.llamacpp import BINARY, compared
from tools.bench.offload.profile import Figure, Profile
from tools.bench.standin import STATE, inputs, layer, measure

SIMULATED = "simulated: no time below is any GPU's"
ASSUMED_LAYER_S = 5e-5


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what the command line names."""
    options = parser().parse_args(arguments)
    support = gpu_support(options.device)
    if not support:
        sys.stderr.write(f"nothing was measured: {support.reason}\n")
        return 2
    from edgerun.offload.cuda.arithmetic import SIMULATED as IS_SIMULATED

    say(SIMULATED if IS_SIMULATED else f"measured, GPU {options.device}")
    from numba import cuda

    with cuda.gpus[options.device]:
        seen = {**copies(options), **launches(options), **products(options)}
    for rows in options.rows:
        say(makespans(rows, options))
    for line in replies(options):
        say(line)
    asked = options.share, options.tokens, options.device, options.llama_bench
    for line in compared(options.gguf, *asked):
        say(line)
    if options.profile:
        profile = profile_of(seen, options.title, is_simulated=IS_SIMULATED)
        options.profile.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=1))
        say(f"{options.profile} was written")
    return 0


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    command_line = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command_line.add_argument("--device", type=int, default=0)
    command_line.add_argument("--profile", type=Path)
    command_line.add_argument("--title", default="a GPU of NVIDIA's and its processor")
    for name, value in (("experts", 24), ("top-k", 8), ("hidden", 2048), ("width", 1024)):
        command_line.add_argument(f"--{name}", type=int, default=value)
    command_line.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    command_line.add_argument("--calls", type=int, default=60)
    command_line.add_argument("--repeats", type=int, default=20)
    command_line.add_argument("--copy-bytes", type=int, default=256 << 20)
    command_line.add_argument("--models", type=Path, nargs="+", default=[])
    command_line.add_argument("--share", type=float, nargs="+", default=[0.1, 0.25, 0.5])
    command_line.add_argument("--tokens", type=int, default=64)
    command_line.add_argument("--gguf", type=Path, nargs="+", default=[])
    command_line.add_argument("--llama-bench", default=BINARY)
    return command_line


def say(line: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def seconds_of(work: Callable[[], Any], repeats: int) -> float:
    """Median seconds of some work, which is done once before that."""
    work()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def copies(options: argparse.Namespace) -> dict[str, float]:
    """Bytes a second to the GPU, and what a copy costs besides."""
    from numba import cuda

    from edgerun.offload.cuda.streams import Mark, Stream

    target, stream, mark = cuda.device_array(options.copy_bytes, np.uint8), Stream(), Mark()
    seen = {}
    for name, source in (
        ("pinned", cuda.pinned_array(options.copy_bytes, np.uint8)),
        ("pageable", np.empty(options.copy_bytes, np.uint8)),
    ):
        source[:] = 1

        def copy(nbytes: int, source: Any = source) -> None:
            stream.upload(target, source[:nbytes])
            mark.record(stream)
            mark.wait()

        seen[name] = options.copy_bytes / seconds_of(lambda: copy(len(target)), options.repeats)
        say(f"copy to the GPU, {name}: {seen[name] / 1e9:.2f} GB/s")
        seen["upload_s"] = min(
            seen.get("upload_s", 1.0), seconds_of(lambda: copy(4096), options.repeats)
        )
    say(f"a small copy: {1e6 * seen['upload_s']:.1f} us")
    return seen


def launches(options: argparse.Namespace) -> dict[str, float]:
    """Seconds to launch a kernel that does nothing: alone, and one of many."""
    from numba import cuda

    from edgerun.offload.cuda.streams import Kernel, Mark, Stream

    def nothing(x):  # type: ignore[no-untyped-def]
        return

    kernel = Kernel(nothing, (cuda.device_array(1, np.float32),))
    stream, mark, many = Stream(), Mark(), 10

    def launch(count: int) -> None:
        for _ in range(count):
            stream.launch(kernel, (1, 1), (1, 1))
        mark.record(stream)
        mark.wait()

    alone, of_many = (
        seconds_of(partial(launch, count), options.repeats) / count for count in (1, many)
    )
    say(f"launch of a kernel: {1e6 * alone:.1f} us, one of {many} {1e6 * of_many:.1f} us")
    return {"launch_s": of_many}


def products(options: argparse.Namespace) -> dict[str, float]:
    """Seconds of experts at some rows on the GPU: one expert, and as many as a token has.

    Of these an expert each a row; no expert follows itself, so that caches do not hold it.
    """
    from numba import cuda

    from edgerun.offload.cuda.programs import ExpertPrograms
    from edgerun.offload.cuda.slots import matrices_of
    from edgerun.offload.cuda.streams import Mark, Stream

    most, graph, cpu = max(*options.rows, options.top_k), layer(options), CpuBackend()
    (node,), seen = graph.nodes, {}
    first = Layer.of(0, node, graph, Shape.of(most), cpu, CompileOptions(STATE))
    nbytes, matrices = first.layout.nbytes, matrices_of(first.layout, node.attrs["activations"])
    sizes = DeviceSizes(nbytes, first.experts, most, options.hidden, options.width)
    programs, stream = ExpertPrograms(sizes, matrices, node.attrs["activation"]), Stream()
    for number, slot in enumerate(first.slots):
        stream.upload(programs.memory, slot, number * nbytes)
    x = cuda.pinned_array((most, options.hidden), np.float32)
    out, numbers = cuda.pinned_array(x.shape, np.float32), iter(range(1 << 30))
    x[:] = np.random.default_rng(0).standard_normal(x.shape)
    begin, end = Mark(), Mark()

    def multiply(rows: int, experts: int) -> float:
        chosen = [next(numbers) % first.experts for _ in range(experts)]
        slots = sorted(chosen * (rows // experts))
        begin.record(stream)
        programs.run(x[:rows], slots, out[:rows], stream)
        end.record(stream)
        end.wait()
        return end.seconds_after(begin)

    for rows, experts in [*((rows, 1) for rows in sorted(options.rows)), (options.top_k,) * 2]:
        seconds = seconds_of(partial(multiply, rows, experts), options.repeats)
        of_gpu = statistics.median(multiply(rows, experts) for _ in range(options.repeats))
        what = "an expert" if experts == 1 else f"{experts} experts"
        say(f"{what} of {nbytes / 1e6:.2f} MB, {rows} rows: {1e6 * seconds:.0f} us, of which "
            f"the GPU {1e6 * of_gpu:.0f}, {experts * nbytes / seconds / 1e9:.1f} GB/s")  # fmt: skip
        if experts == 1:
            seen[f"device {rows}"] = seconds
    seen["token_s"], seen["token_bytes"] = seconds, options.top_k * nbytes
    first.close()
    cpu.close()
    weights = 3 * options.hidden * options.width
    return {**seen, "nbytes": nbytes, "weights": weights, "many": max(options.rows)}


def makespans(rows: int, options: argparse.Namespace) -> str:
    """Layers shared with the processor: what was planned and what it took."""
    shared = CudaBackend()
    shared.configure({"share_always": True})
    shared.use_device(str(options.device))
    calls = measure(layer(options), rows, inputs(rows, options), shared, threads=0)
    tallies = [call.tally for call in calls[len(calls) // 2 :]]
    ratio = statistics.median(each.seconds / each.planned_s for each in tallies)
    shared_s, alone_s = (
        statistics.median(getattr(call, name) for call in calls) for name in ("shared_s", "alone_s")
    )
    return (
        f"a layer, {rows} rows: makespan over planned {ratio:.2f}, whole call "
        f"{1e3 * shared_s:.2f} ms, the processor alone {1e3 * alone_s:.2f} ms"
    )


def replies(options: argparse.Namespace) -> Iterator[str]:
    """Tokens a second of whole models, and whether they are those of the processor."""
    import edgerun

    for path in options.models:
        asked: dict[str, Any] = {"max_tokens": options.tokens, "seed": 0, "ignore_eos": True}
        with edgerun.load(path, backend="cpu") as llm:
            expected = llm.generate("Once upon a time", **asked)
        yield f"{path.name}, the processor alone: {expected.stats.decode_tokens_per_s:.2f} tokens/s"
        for share in options.share:
            nbytes = max(1, int(share * experts_bytes(path)))
            device = f"cuda:{options.device}"
            with edgerun.load(path, device=device, gpu_memory=nbytes, share="always") as llm:
                reply = llm.generate("Once upon a time", **asked)
            same = "the same" if reply.ids == expected.ids else "OTHER"
            speed = reply.stats.decode_tokens_per_s
            yield f"{path.name}, {share:.0%} of experts: {speed:.2f} tokens/s, {same} tokens"


def experts_bytes(path: Path) -> int:
    """Bytes that all experts of a bundle take in memory."""
    from edgerun.model.bundle import open_bundle
    from edgerun.plan.expert_memory import expert_layers

    layers = expert_layers(open_bundle(path).graph, CpuBackend().expert_bytes)
    return sum(each.experts * each.held_bytes for each in layers)


def profile_of(seen: dict[str, float], title: str, *, is_simulated: bool) -> Profile:
    """What was seen, as the simulator of shared layers reads it."""
    how = (
        "Numba's simulator: no figure of any GPU" if is_simulated else "python -m tools.bench.cuda"
    )

    def figure(value: float, source: str = how, *, is_seen: bool = not is_simulated) -> Figure:
        basis = "measured" if is_seen else "assumed"
        return Figure(value, basis, source, date.today().isoformat())  # type: ignore[arg-type]

    many = seen[f"device {seen['many']:.0f}"]
    return Profile(
        title=f"simulated: {title}" if is_simulated else title,
        cpu_read_bytes_s=figure(50e9, "not looked at here", is_seen=False),
        cpu_macs_s=figure(400e9, "not looked at here", is_seen=False),
        device_read_bytes_s=figure(seen["token_bytes"] / seen["token_s"]),
        device_macs_s=figure(seen["many"] * seen["weights"] / many),
        product_s=figure(seen["launch_s"]),
        link_bytes_s=figure(seen["pinned"]),
        upload_s=figure(seen["upload_s"]),
        layer_s=figure(ASSUMED_LAYER_S, "attention on the GPU, which is not there", is_seen=False),
    )


if __name__ == "__main__":
    raise SystemExit(main())
