"""Checks an application as it lies on the disk: before it counts as sent, and before every load."""

from __future__ import annotations

import hashlib

from ..board.boards import Board
from ..board.policy import Policy
from ..board.system import System
from ..errors import RefusalError
from ..formats import configuration, ed25519
from ..protocol import MAX_FILE_BYTES
from .manifest import MANIFEST, MAX_MANIFEST_BYTES, SIGNATURE, Manifest, read_manifest
from .overlay import check_overlay


def check_application(
    system: System, folder: str, name: str, digest: str, board: Board, policy: Policy
) -> Manifest:
    """Checks every file of an application: what it is, who has signed it, what it asks for.

    Args:
        system: the machine.
        folder: where it lies.
        name: that it must have.
        digest: sha256 that its manifest must have.
        board: this one.
        policy: of this board.

    Raises:
        RefusalError: a file is missing, too many, altered, not trusted or not for this board.
        OSError: it cannot be read.
    """
    names = set(system.names(folder))
    if MANIFEST not in names:
        raise RefusalError(f"{MANIFEST} is missing")
    content = system.read(f"{folder}/{MANIFEST}", MAX_MANIFEST_BYTES)
    manifest = read_manifest(content)
    if manifest.digest != digest or manifest.application != name:
        raise RefusalError(f"{MANIFEST} was altered: its digest or name is not the expected one")
    policy.check_signature(content, _signature(system, folder, SIGNATURE in names))
    if names - {MANIFEST, SIGNATURE} != manifest.files.keys():
        raise RefusalError(f"the files are not {', '.join(sorted(manifest.files))}")
    if manifest.board != board:
        raise RefusalError(f"the application is for {manifest.board.title}, this is {board.title}")
    for file, (size, expected) in sorted(manifest.files.items()):
        data = system.read(f"{folder}/{file}", MAX_FILE_BYTES)
        if len(data) != size or hashlib.sha256(data).hexdigest() != expected:
            raise RefusalError(f"{file} is not what the manifest says: its digest differs")
        if file == manifest.bitstream:
            check_bitstream(data, board)
        elif file == manifest.overlay:
            check_overlay(data, manifest)
    return manifest


def check_bitstream(data: bytes, board: Board) -> None:
    """Looks into a bitstream in the FPGA manager's byte order.

    Raises:
        RefusalError: it is none, or is made for other logic than the board's.
    """
    try:
        idcode = configuration.idcode(configuration.swap_words(data)[: configuration.SEARCH_BYTES])
    except configuration.ConfigurationError as error:
        raise RefusalError(f"the bitstream is unusable: {error}") from None
    if not board.accepts_idcode(idcode):
        raise RefusalError(
            f"the bitstream is for a device with IDCODE {idcode:#010x}, and {board.title} has "
            f"{board.idcode:#010x}"
        )


def _signature(system: System, folder: str, is_there: bool) -> bytes | None:
    return system.read(f"{folder}/{SIGNATURE}", ed25519.SIGNATURE_BYTES) if is_there else None
