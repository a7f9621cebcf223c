"""Runs tests of edgerun, and models, under a Python for 64-bit ARM.

The environment (``environment.py``) is set up the first time. What is compiled is kept, by the
processor's features.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .environment import ROOT, Environment, environment

# QEMU's names, by what they have: neither dot products nor half-precision arithmetic; dot
# products; everything that QEMU knows, matrix products of bytes among it.
CPUS = ("cortex-a53", "cortex-a76", "max")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=3000")
CROSSED = "tools.emulate_isa.aarch64.crossed"
REPLIES = ("-m", "tools.emulate_isa.aarch64.replies")
# Bundles whose replies are compared: recipes of the golden models in ``tests/golden``.
BUNDLES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "llama-fp32": ("llama", {"weights": "fp32"}),
    "llama-int8": ("llama", {"weights": "int8"}),
    "qwen3-int4": ("qwen3", {"weights": "int4"}),
    "qwen2-int2": ("qwen2", {"weights": "int2"}),
    "bitnet-ternary": ("bitnet-offline", {"weights": "ternary"}),
}


def kernels(place: Environment, cpu: str, arguments: Sequence[str]) -> bool:
    """The conformance suite; this machine compiles its kernels, an hour faster."""
    conformance = [f"tests/conformance/kernels/test_{name}.py" for name in ("kernels", "same_bits")]
    return _pytest(place, cpu, ["-p", CROSSED, *conformance], arguments)


def start(place: Environment, cpu: str, arguments: Sequence[str]) -> bool:
    """The loader, and that a second run needs no compiler."""
    loading = ["tests/kernels/jit/test_elf.py", "tests/kernels/test_processor.py"]
    return _pytest(place, cpu, [*loading, "tests/cli/test_start.py"], arguments)


def golden(place: Environment, cpu: str, arguments: Sequence[str]) -> bool:
    """Every architecture against logits of transformers, on our own back-ends."""
    files = ["tests/backends/test_golden.py", "-k", "not onnxruntime"]
    return _pytest(place, cpu, files, arguments)


def replies(place: Environment, cpu: str, arguments: Sequence[str]) -> bool:
    """Texts of the default model and ids of the golden models are those of this machine."""
    from tests.support.bundles import bundle_of

    with tempfile.TemporaryDirectory() as name:
        folders = []
        for bundle, (model, recipe) in BUNDLES.items():
            folders.append(Path(name) / bundle)
            folders[-1].symlink_to(bundle_of(model, **recipe))
        command = [*REPLIES, *map(str, folders)]
        here = subprocess.run(
            [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
        there = place.run(command, cpu, _variables(place), stdout=subprocess.PIPE)
    if there.returncode:
        return False
    expected, actual = json.loads(here.stdout), json.loads(there.stdout)
    for what, reply in expected.items():
        same = actual.get(what) == reply
        print(f"{what}: {'the same' if same else f'{actual.get(what)!r} instead of {reply!r}'}")
    return actual.keys() == expected.keys() and actual == expected


SUITES: Mapping[str, Callable[[Environment, str, Sequence[str]], bool]] = {
    suite.__name__: suite for suite in (kernels, start, golden, replies)
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--cpu", action="append", choices=CPUS, help="all of them unless given")
    parser.add_argument(
        "--suite", action="append", choices=[*SUITES, "none"], help="all of them unless given"
    )
    parser.add_argument("arguments", nargs="*", help="of pytest, behind --")


def run(options: argparse.Namespace) -> int:
    """Runs the command; 1 when a suite fails on a processor.

    Raises:
        RuntimeError: the environment cannot be set up.
    """
    place = environment()
    place.set_up(say)
    suites = {name: SUITES[name] for name in options.suite or SUITES if name != "none"}
    results = {}
    for cpu in options.cpu or CPUS:
        for name, suite in suites.items():
            say(f"running {name} on QEMU's {cpu}")
            results[cpu, name] = suite(place, cpu, options.arguments)
    for (cpu, name), passed in results.items():
        print(f"{cpu:12} {name:10} {'passed' if passed else 'FAILED'}")
    return int(not all(results.values()))


def say(text: str) -> None:
    """Tells of progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def _pytest(
    place: Environment, cpu: str, selection: Sequence[str], arguments: Sequence[str]
) -> bool:
    command = [*PYTEST, *selection, *arguments]
    return place.run(command, cpu, _variables(place)).returncode == 0


def _variables(place: Environment) -> dict[str, str]:
    return {"EDGERUN_CACHE": str(place.folder / "cache"), "EMULATED_COMPILER": sys.executable}
