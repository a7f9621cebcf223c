"""Starts Bochs with a memory image and reads the report of ``monitor.S``."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgerun.kernels.lang.dot import X86

from .build import IMAGE, PAGE, reset_code
from .processors import Processor

BEGIN, DAMAGED = b"<edgerun-report>", b"<image damaged!>"
MEGABYTE = 1 << 20
# What a graphics card must have as its ROM: signature, length, and a sum of zero. Nothing runs it.
VGA_ROM = bytes([0x55, 0xAA, 1, *[0] * 508, -(0x55 + 0xAA + 1) % 256])
CONFIGURATION = """
cpu: model={model}, count=1, reset_on_triple_fault=0
memory: guest={megabytes}, host={megabytes}
romimage: file={reset}, address=0xffff0000
vgaromimage: file={vga}
optramimage1: file={image}, address={address:#x}
port_e9_hack: enabled=1
display_library: {display}
panic: action=fatal
log: {log}
"""
PAGE_FAULT = 14
EXCEPTIONS = {
    0: "division error",
    6: "unknown instruction",
    13: "protection fault",
    PAGE_FAULT: "page fault",
}


@dataclass(frozen=True, slots=True)
class Trap:
    """What stopped a job.

    Attributes:
        exception: number of the exception.
        instruction: its address.
        address: what a page fault was about; otherwise of no meaning.
    """

    exception: int
    instruction: int
    address: int

    def __str__(self) -> str:
        name = EXCEPTIONS.get(self.exception, f"exception {self.exception}")
        of = f" for {self.address:#x}" if self.exception == PAGE_FAULT else ""
        return f"{name} at {self.instruction:#x}{of}"


@dataclass(frozen=True, slots=True)
class Bochs:
    """The emulator: its program, and the display it was built with that needs no screen."""

    program: str = "bochs"
    display: str = "rfb"

    def missing(self, processor: Processor) -> str:
        """What keeps it from standing for a processor; empty if nothing does."""
        if not X86:
            return "kernels are compiled for this machine's own architecture, which is not x86"
        for program in (self.program, "as", "ld"):
            if shutil.which(program) is None:
                return f"{program} is not installed: apt-get install bochs bochs-term binutils"
        command = [self.program, "--help", "cpu"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if processor.model not in (done.stdout + done.stderr).split():
            return f"{self.program} does not know {processor.model}; a newer version may"
        return ""

    @property
    def display_library(self) -> str:
        """The display's line in a configuration; rfb is to wait for nobody."""
        return self.display + (', options="timeout=0"' if self.display == "rfb" else "")


def run_image(
    bochs: Bochs, processor: Processor, image: bytes, jobs: int, folder: Path, timeout_s: float
) -> tuple[list[Trap | None], dict[int, bytes]]:
    """Runs an image; returns what stopped each job, and the changed pages by address.

    Raises:
        RuntimeError: the machine did not get to the end of its report.
        subprocess.TimeoutExpired: it took longer than ``timeout_s``.
    """
    (folder / "image.bin").write_bytes(image)
    (folder / "vga.bin").write_bytes(VGA_ROM)
    configuration = folder / "bochsrc"
    configuration.write_text(
        CONFIGURATION.format(
            model=processor.model,
            megabytes=-(-(IMAGE + len(image)) // (32 * MEGABYTE)) * 32,
            display=bochs.display_library,
            reset=reset_code(folder),
            vga=folder / "vga.bin",
            image=folder / "image.bin",
            address=IMAGE,
            log=folder / "log",
        )
    )
    done = subprocess.run(
        [bochs.program, "-q", "-f", str(configuration)],
        input=b"c\n",  # Debian's Bochs has a debugger, which waits for this "continue"
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )
    try:
        return _read(done.stdout, jobs)
    except ValueError as error:
        log = (folder / "log").read_text(errors="replace").splitlines()[-12:]
        raise RuntimeError("\n".join([f"Bochs: {error}", *log])) from error


def _read(output: bytes, jobs: int) -> tuple[list[Trap | None], dict[int, bytes]]:
    if DAMAGED in output:
        raise ValueError("the image was not loaded as expected")
    place = output.find(BEGIN)
    if place < 0:
        raise ValueError("the machine reported nothing")
    place += len(BEGIN)
    words = np.frombuffer(output, np.int64, 4 * jobs, place).reshape(jobs, 4)
    place += words.nbytes
    traps = [Trap(row[0] - 1, row[2], row[3]) if row[0] else None for row in words.tolist()]
    pages = {}
    while page := int(np.frombuffer(output, np.int64, 1, place)[0]):
        pages[page] = output[place + 8 : place + 8 + PAGE]
        place += 8 + PAGE
    return traps, pages
