"""``--device board``: the application that `edgerun fpga deploy` has put on this board.

Nothing is loaded: what runs is compared with what was confirmed, byte for byte and clock for clock.
Then either pynq is given the package's own hardware description, or edgerun maps registers and
memory itself (``native/``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from edgerun.errors import InputError
from edgerun_hw.board_side.devices import SEPARATOR, stamp_of
from edgerun_hw.board_side.lock import BoardLock
from edgerun_hw.deploy.bitstream import parse_bit, to_bin
from edgerun_hw.deploy.broker.application.check import check_application
from edgerun_hw.deploy.broker.application.manifest import Manifest
from edgerun_hw.deploy.broker.application.store import STATE
from edgerun_hw.deploy.broker.board import settings
from edgerun_hw.deploy.broker.board.identity import board_of
from edgerun_hw.deploy.broker.board.loader import FIRMWARE, check_state, foreign_overlays
from edgerun_hw.deploy.broker.board.policy import read_policy
from edgerun_hw.deploy.broker.board.system import System
from edgerun_hw.deploy.broker.errors import BrokerError
from edgerun_hw.deploy.broker.transaction import Changer
from edgerun_hw.deploy.errors import PackageError
from edgerun_hw.deploy.hardware import read_xsa
from edgerun_hw.devices import pynq
from edgerun_hw.devices.native.kernel import Kernel, LinuxKernel
from edgerun_hw.devices.native.memory import DEFAULT_NAME
from edgerun_hw.devices.native.port import NativePort
from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.port import Overlay

FORCE = ",force"
PYNQ, NATIVE = "pynq", "native"
HOSTS = (PYNQ, NATIVE)
# What this machine is; another one in tests.
SYSTEM: Callable[[], System] = System
KERNEL: Callable[[], Kernel] = LinuxKernel


@dataclass(frozen=True)
class Request:
    """What follows ``board:``, as in ``board:NAME,host=native,memory=udmabuf1``.

    Attributes:
        name: of the application; "" for any.
        host: what reaches the logic, of ``HOSTS``.
        memory: name of the u-dma-buf device, for the native host.
    """

    name: str = ""
    host: str = PYNQ
    memory: str = DEFAULT_NAME


def parse_request(argument: str) -> Request:
    """Reads what follows ``board:``.

    Raises:
        InputError: an option is unknown, or has a value that it does not take.
    """
    name, *options = argument.split(",")
    if "=" in name:
        name, options = "", [name, *options]
    given: dict[str, str] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key not in ("host", "memory") or not value or key in given:
            raise InputError(
                f"the device 'board' does not take {option!r}: write "
                "board[:NAME][,host=pynq|native][,memory=UDMABUF]"
            )
        given[key] = value
    request = Request(name, **given)
    if request.host not in HOSTS:
        raise InputError(f"no host is called {request.host!r}: there are {' and '.join(HOSTS)}")
    if "memory" in given and request.host != NATIVE:
        raise InputError("pynq allocates its own memory: memory= goes with host=native")
    return request


def obstacle(argument: str) -> str:
    """Why ``board:argument`` cannot be used here, or ""."""
    if parse_request(argument).host == NATIVE:
        return ""
    missing = pynq.obstacle("")
    return missing and f"{missing}; or choose board:host=native, which needs u-dma-buf"


def prepare_deployed(argument: str) -> None:
    """Checks what is deployed, and that this user can reach it; see ``find_deployed``.

    Raises:
        InputError: it cannot be used, or an option is unknown.
    """
    find_deployed(parse_request(argument).name)


def find_deployed(name: str = "") -> Manifest:
    """The application that counts on this board, if it is whole and what runs.

    Args:
        name: that it must have; "" for any.

    Raises:
        InputError: there is none, it was altered, another overlay runs, or its clock does.
    """
    system = SYSTEM()
    try:
        changer = Changer(system)
        active = changer.store.state().active
        if active is None:
            raise InputError(
                "nothing is deployed on this machine: run `edgerun fpga deploy PACKAGE` here first"
            )
        if name and name != active.name:
            raise InputError(f"{active.name} is deployed on this board, and not {name}")
        if changer.pending() is not None:
            raise InputError("a deployment was interrupted: run `edgerun fpga rollback` first")
        return _checked(system, changer)
    except BrokerError as error:
        raise InputError(f"the board's application cannot be used: {error}") from None
    except OSError as error:
        raise InputError(
            f"the board's application cannot be read: {error.strerror or error}; run as root"
        ) from None


def _checked(system: System, changer: Changer) -> Manifest:
    """Compares what was confirmed with what is there and what runs."""
    active, store = changer.store.state().active, changer.store
    assert active is not None
    if not changer.is_loaded() or store.in_place(active.name) != active:
        raise InputError(
            f"{active.name} is not what runs on this board, or was altered: `edgerun fpga status` "
            "says more; deploy it again"
        )
    others = foreign_overlays(system)
    if others:
        raise InputError(
            f"overlays of somebody else are applied on this board ({', '.join(others)}): what "
            f"runs may not be {active.name}; take them away (fpgautil -R), and deploy it again"
        )
    policy = read_policy(system)
    board, folder = board_of(system, policy), store.folder(active)
    manifest = check_application(system, folder, active.name, active.digest, board, policy)
    major = regs.VERSION_MAJOR.of(manifest.version)
    if (manifest.identity, major) != (regs.ID_VALUE, regs.VERSION_MAJOR_VALUE):
        raise InputError(
            f"{active.name} has register map {major} of ID {manifest.identity:#010x}, and this "
            f"edgerun drives map {regs.VERSION_MAJOR_VALUE} of {regs.ID_VALUE:#010x}: build, "
            "package and deploy it again"
        )
    check_state(system)
    settings.check_rates(system, manifest.clocks, manifest.board.family)
    if manifest.description not in manifest.files:
        raise InputError(
            f"the package of {active.name} has no hardware description: package it again with "
            "its .hwh, and deploy that"
        )
    return manifest


def open_deployed(argument: str) -> Overlay:
    """Drives the application that is deployed on this board.

    Raises:
        InputError: see ``find_deployed``; another was deployed meanwhile; or the native host cannot
            reach registers or memory.
        OverlayError: what runs is no overlay of ours, or somebody else uses it.
    """
    request = parse_request(argument)
    manifest = find_deployed(request.name)
    overlay = _OPEN[request.host](request, manifest)
    try:
        # The board's lock is held from here on, and was not when this was looked at.
        if find_deployed(request.name) != manifest:
            raise InputError(
                f"{manifest.application} was replaced while it was opened: start again"
            )
    except BaseException:
        overlay.close()
        raise
    return overlay


def _through_pynq(request: Request, manifest: Manifest) -> Overlay:
    folder = SYSTEM().path(f"{FIRMWARE}/{manifest.application}")
    return pynq.open_here("deployed", str(folder / manifest.bitstream))


def _natively(request: Request, manifest: Manifest) -> Overlay:
    lock = BoardLock()
    try:
        clock = manifest.clocks.get(settings.CLOCKS[0])
        clock_hz = clock.hertz if clock else manifest.board.clock_hz[0]
        port = NativePort(KERNEL(), manifest.base, clock_hz, request.memory, lock.release)
    except BaseException:
        lock.release()
        raise
    try:
        overlay = Tlmm(port)
        port.check_addresses(overlay.capabilities.addr_bits)
    except BaseException:
        port.close()
        raise
    return overlay


_OPEN: Mapping[str, Callable[[Request, Manifest], Overlay]] = MappingProxyType(
    {PYNQ: _through_pynq, NATIVE: _natively}
)


def check_bitstream(argument: str) -> Path:
    """Returns the bitstream of ``BITSTREAM[,force]``, if it may be loaded in place of what is.

    Raises:
        InputError: it is unusable, or would replace what `edgerun fpga deploy` has put there.
    """
    forced = argument.endswith(FORCE)
    path = pynq.check_bitfile(argument.removesuffix(FORCE))
    if forced:
        return path
    system = SYSTEM()
    try:
        changer = Changer(system)
        active = changer.store.state().active
        if active is None or not changer.is_loaded():
            return path
        manifest = changer.store.manifest(active.name)
    except (BrokerError, OSError) as error:
        raise InputError(
            f"what runs on this board is not known: {error}; load {path.name} all the same with "
            f"--device pynq:{path}{FORCE}"
        ) from None
    if manifest is None or manifest.files[manifest.bitstream][1] != _digest(path):
        raise InputError(
            f"{active.name} is deployed on this board, and {path.name} is another design: use "
            f"what is deployed with --device board, or replace it with --device pynq:{path}{FORCE}"
        )
    return path


def _digest(path: Path) -> str:
    """Of a bitstream as the FPGA manager takes it."""
    try:
        content = path.read_bytes()
        if path.suffix == ".xsa":
            content, _ = read_xsa(content)
        return hashlib.sha256(to_bin(parse_bit(content).data)).hexdigest()
    except PackageError as error:
        raise InputError(f"{path} is no bitstream: {error}") from None


def open_bitstream(argument: str) -> Overlay:
    """Loads a bitstream onto this board through pynq and returns its driver.

    Raises:
        InputError: see ``check_bitstream``.
        OverlayError: the board does not load it, it is not the overlay, somebody else uses it, or
            an application was deployed since it was checked.
    """
    record = str(SYSTEM().path(STATE))
    stamp = stamp_of(record)
    path = str(check_bitstream(argument))
    if argument.endswith(FORCE):
        return pynq.open_here("pynq", path)
    # The board's lock is taken where pynq is, and was not held when this was looked at.
    return pynq.open_here("unless-deployed", SEPARATOR.join((stamp, record, path)))
