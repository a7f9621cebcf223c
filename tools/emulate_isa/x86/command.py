"""Runs the conformance cases of the kernels on an emulated x86 processor.

It needs Debian's packages bochs and binutils. Kernels and cases are found as the tests find them,
so new ones need nothing here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import defaultdict
from pathlib import Path

from .build import Kernels
from .calls import Outcome, find_cases, record
from .image import Job, Memory, make_image, translate
from .machine import Bochs, run_image
from .processors import PROCESSORS, Processor

TIMEOUT_S = 1800.0


def say(text: str) -> None:
    """Tells of progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def emulate(bochs: Bochs, processor: Processor, only: list[str]) -> list[Outcome]:
    """Runs the cases whose names contain one of the texts."""
    memory = Memory()
    kernels = Kernels(processor, lambda key: say(f"compiling {key}"))
    runs, outcomes = record(find_cases(processor, only), kernels, memory)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code, addresses = kernels.link(folder)
        jobs = [
            Job(addresses[run.kernel], translate(run.arguments, run.regions), run.chunks)
            for run in runs
        ]
        image = make_image(processor, code, jobs, memory)
        say(f"running {len(jobs)} calls of {len(addresses)} kernels on Bochs's {processor.model}")
        traps, pages = run_image(bochs, processor, image, len(jobs), folder, TIMEOUT_S)
    damaged = {region.guest for region in memory.accept(pages)}
    outcomes += [run.judge(trap, damaged) for run, trap in zip(runs, traps, strict=True)]
    return outcomes


def print_table(outcomes: list[Outcome], verbose: bool) -> None:
    """Prints a line a kernel, and one for every case that failed, or for all."""
    by_kernel: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_kernel[str(outcome.case.kernel)].append(outcome)
        if verbose or outcome.failure:
            print(f"{outcome.case}: {outcome.excuse or outcome.failure or 'ok'}")
    print(f"{'kernel':20} cases  failed  emulator's  largest error")
    for name, its in by_kernel.items():
        errors = [error for outcome in its for error in outcome.errors]
        error = f"{max(errors):.1e}" if errors else "-"
        print(f"{name:20} {_counts(its)}  {error:>13}")
    print(f"{'all':20} {_counts(outcomes)}")


def _counts(outcomes: list[Outcome]) -> str:
    excused = sum(bool(outcome.excuse) for outcome in outcomes)
    failed = sum(bool(outcome.failure) for outcome in outcomes) - excused
    return f"{len(outcomes):5} {failed:7} {excused:11}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--cpu", choices=PROCESSORS, default="icelake-client")
    parser.add_argument("--only", action="append", help="part of the names of cases to run")
    parser.add_argument("--verbose", action="store_true", help="a line for every case")
    parser.add_argument("--bochs", default="bochs", help="the emulator's program")
    parser.add_argument("--display", default="rfb", help="its display, e.g. nogui")


def run(options: argparse.Namespace) -> int:
    """Runs the command; 1 when a case fails.

    Raises:
        RuntimeError: the emulator is not there, or does not know the processor.
    """
    bochs, processor = Bochs(options.bochs, options.display), PROCESSORS[options.cpu]
    if missing := bochs.missing(processor):
        raise RuntimeError(missing)
    warnings.simplefilter("ignore")  # Numba's, about what the kernels' authors know
    outcomes = emulate(bochs, processor, options.only or [""])
    print_table(outcomes, options.verbose)
    return int(not outcomes or any(outcome.failure and not outcome.excuse for outcome in outcomes))
