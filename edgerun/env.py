"""The environment variables that edgerun obeys; no other module reads the environment.

=======================  ==========================================================================
``EDGERUN_DEBUG``        0 to 4: 1 shows the plan and tracebacks, 2 times per op, 3 shapes, 4 dumps
``EDGERUN_VALIDATE``     1 reruns each segment on the reference back-end and names what diverges
``EDGERUN_BACKEND``      forces one back-end, e.g. ``reference``
``EDGERUN_ISA``          forces one instruction set of the CPU kernels, e.g. ``avx2``
``EDGERUN_PACK``         how ternary weights lie in memory: ``two_bits`` or ``trits``
``EDGERUN_CACHE``        folder of compiled kernels and the machine profile
``EDGERUN_STATE``        folder of what chats keep: messages typed, and the last chat
``EDGERUN_THREADS``      worker threads, when the caller names no number
``EDGERUN_PYNQ_PYTHON``  the interpreter of an environment with pynq, for FPGA boards
``EDGERUN_*_DEVICE``     device of a back-end, e.g. ``EDGERUN_FPGA_DEVICE=cosim``; it joins the plan
``TERM``                 unset or ``dumb``: nothing on the terminal is erased or redrawn
=======================  ==========================================================================
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgerun.errors import InputError
from edgerun.values import shown, whole_number

MAX_DEBUG = 4
MAX_THREADS = 1024
# How ternary weights lie in memory: codes of two bits, or trits (``formats/trits.py``).
PACKS = ("two_bits", "trits")
DEVICE = re.compile(r"EDGERUN_([A-Z0-9_]+)_DEVICE")
BOOLEANS = {"": False, "0": False, "1": True, "false": False, "true": True}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for.

    Attributes:
        debug: amount of debugging output, 0 to ``MAX_DEBUG``.
        validate: rerun every segment on the reference back-end.
        backend: name of the back-end to force, or None.
        isa: name of the instruction set to force, or None.
        cache_dir: folder for files that can be computed again; it may not exist yet.
        state_dir: folder for what a user wrote and may want again; it may not exist yet.
        threads: number of worker threads, or None for one per usable core (``cores.py``).
        pack: how ternary weights lie in memory, or None for what the bundle asks for.
        pynq_python: interpreter of an environment with pynq, or None.
        devices: name of the device that a back-end is to use, by the back-end's name.
    """

    debug: int
    validate: bool
    backend: str | None
    isa: str | None
    cache_dir: Path
    state_dir: Path
    threads: int | None
    pack: str | None = None
    pynq_python: Path | None = None
    devices: Mapping[str, str] = field(default_factory=dict)


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Reads and checks the variables in ``environment``.

    Raises:
        InputError: a variable holds something it cannot mean.
    """
    return Settings(
        debug=_integer(environment, "EDGERUN_DEBUG", 0, MAX_DEBUG) or 0,
        validate=_boolean(environment, "EDGERUN_VALIDATE"),
        backend=environment.get("EDGERUN_BACKEND", "").strip() or None,
        isa=environment.get("EDGERUN_ISA", "").strip() or None,
        cache_dir=_folder(environment, "EDGERUN_CACHE", "user_cache_dir"),
        state_dir=_folder(environment, "EDGERUN_STATE", "user_state_dir"),
        threads=_integer(environment, "EDGERUN_THREADS", 1, MAX_THREADS),
        pack=_choice(environment, "EDGERUN_PACK", PACKS),
        pynq_python=_program(environment, "EDGERUN_PYNQ_PYTHON"),
        devices=_devices(environment),
    )


@functools.cache
def settings() -> Settings:
    """Returns the settings of this process, read once.

    Raises:
        InputError: a variable holds something it cannot mean.
    """
    return read_settings(os.environ)


def environment_of_child(more: Mapping[str, str]) -> dict[str, str]:
    """What a child process is to have: the environment of this one, and some variables more."""
    return {**os.environ, **more}


def terminal_erases() -> bool:
    """Whether the terminal, by its name in ``TERM``, obeys sequences that move and erase."""
    return os.environ.get("TERM", "") not in ("", "dumb")


def _integer(environment: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    number = whole_number(text)
    if number is None or not low <= number <= high:
        raise InputError(f"{name}={shown(text)} must be a whole number from {low} to {high}")
    return number


def _boolean(environment: Mapping[str, str], name: str) -> bool:
    text = environment.get(name, "").strip().lower()
    if text not in BOOLEANS:
        raise InputError(f"{name}={text!r} must be 0 or 1")
    return BOOLEANS[text]


def _choice(environment: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str | None:
    text = environment.get(name, "").strip()
    if text and text not in allowed:
        raise InputError(f"{name}={text!r} must be one of {', '.join(allowed)}")
    return text or None


def _devices(environment: Mapping[str, str]) -> dict[str, str]:
    """Devices by the name of their back-end."""
    named = ((DEVICE.fullmatch(name), value.strip()) for name, value in environment.items())
    return {match[1].lower(): value for match, value in named if match and value}


def _program(environment: Mapping[str, str], name: str) -> Path | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    path = _expanded(name, text)
    if "\0" in text or not os.access(path, os.X_OK) or path.is_dir():
        raise InputError(f"{name}={text!r} is no program that can be run: expected its full path")
    return path


def _folder(environment: Mapping[str, str], name: str, default: str) -> Path:
    """The folder that a variable names, else one of the user's, by its function in platformdirs."""
    text = environment.get(name, "")
    if "\0" in text:
        raise InputError(f"{name} contains a null character; expected a folder name")
    if text:
        return _expanded(name, text)
    import platformdirs

    return Path(getattr(platformdirs, default)("edgerun", appauthor=False))


def _expanded(name: str, text: str) -> Path:
    """A path whose ``~`` or ``~user`` is replaced."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise InputError(
            f"{name}={text!r} begins with the home folder of nobody here: expected a full path"
        ) from error
