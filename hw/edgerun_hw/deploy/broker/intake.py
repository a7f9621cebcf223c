"""Takes an upload in, and lets nothing through that is not what its manifest says."""

from __future__ import annotations

import hashlib

from . import configuration, ed25519
from .boards import BOARDS, Board, identify
from .errors import FailureError, ProtocolError, RefusalError
from .manifest import MANIFEST, MAX_MANIFEST_BYTES, SIGNATURE, Manifest, read_manifest
from .protocol import MAX_FILE_BYTES
from .store import INCOMING
from .system import NewFile, System

KEYS = "etc/edgerun/fpga-keys.pem"
MAX_KEYS_BYTES = 64 * 1024
DEVICE_TREE = "proc/device-tree"
MAX_TOTAL_BYTES = MAX_FILE_BYTES + (2 << 20)


def board_of(system: System) -> Board:
    """The board that this is.

    Raises:
        RefusalError: it is none of those known.
    """
    found = compatible(system)
    board = identify(found)
    if board is None:
        names = ", ".join(board.name for board in BOARDS)
        raise RefusalError(
            f"this board calls itself {', '.join(found) or 'nothing'}, which is none of {names}"
        )
    if board.silicon is not None:
        idcode = system.read_word(board.silicon)
        if not board.accepts_idcode(idcode):
            raise RefusalError(
                f"this board's silicon has IDCODE {idcode:#010x}, and {board.title} has "
                f"{board.idcode:#010x}"
            )
    return board


def compatible(system: System) -> tuple[str, ...]:
    """The names by which the device tree calls the board."""
    text = system.read_text(f"{DEVICE_TREE}/compatible")
    return tuple(name for name in text.split("\0") if name)


def trusted_keys(system: System) -> list[bytes]:
    """The keys of which one must have signed; none means that anything is taken.

    Raises:
        FailureError: there is a file of keys that cannot be read: better nothing than everything.
    """
    try:
        return ed25519.read_keys(system.read(KEYS, MAX_KEYS_BYTES))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RefusalError) as error:
        raise FailureError(
            f"the board's file of trusted keys /{KEYS} is unusable: {error}"
        ) from None


class Intake:
    """One upload, file by file.

    Args:
        system: the machine.
        application: name that the manifest must have.
        digest: sha256 that the manifest must have.
    """

    def __init__(self, system: System, application: str, digest: str) -> None:
        self._system, self._application, self._digest = system, application, digest
        self._file: NewFile | None = None
        self._left, self._total = 0, 0

    def put(self, name: str, size: int) -> None:
        """Starts a file.

        Raises:
            ProtocolError: the one before is not complete.
            RefusalError: too much in all, or the name is there already.
        """
        if self._file is not None:
            raise ProtocolError("the file before is not complete")
        self._total += size
        if self._total > MAX_TOTAL_BYTES:
            raise RefusalError(f"an application has at most {MAX_TOTAL_BYTES} bytes")
        self._system.make_folder(INCOMING)
        if self._system.exists(f"{INCOMING}/{name}"):
            raise RefusalError(f"{name} was sent already")
        self._file, self._left = self._system.create(f"{INCOMING}/{name}"), size

    def chunk(self, data: bytes) -> None:
        """Appends to the file; the last byte closes it.

        Raises:
            ProtocolError: there is no file, or these are too many bytes.
            OSError: the disk is full.
        """
        if self._file is None or len(data) > self._left:
            raise ProtocolError("these bytes belong to no file")
        self._file.write(data)
        self._left -= len(data)
        if not self._left:
            file, self._file = self._file, None
            file.close()

    def close(self) -> None:
        """Lets go of a file that is not complete."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close(keep=False)

    def seal(self, board: Board) -> Manifest:
        """Checks everything that has come, as it lies on the disk.

        Raises:
            RefusalError: the manifest, a digest, the signature or the bitstream is wrong.
        """
        if self._file is not None:
            raise ProtocolError("the last file is not complete")
        names = self._system.names(INCOMING)
        if MANIFEST not in names:
            raise RefusalError(f"{MANIFEST} was not sent")
        content = self._system.read(f"{INCOMING}/{MANIFEST}", MAX_MANIFEST_BYTES)
        manifest = read_manifest(content)
        if manifest.digest != self._digest or manifest.application != self._application:
            raise RefusalError(f"{MANIFEST} was altered on its way")
        self._check_signature(content, SIGNATURE in names)
        if set(names) - {MANIFEST, SIGNATURE} != manifest.files.keys():
            raise RefusalError(f"the files are not {', '.join(sorted(manifest.files))}")
        if manifest.board != board:
            raise RefusalError(
                f"the application is for {manifest.board.title}, this is {board.title}"
            )
        for name, (size, digest) in sorted(manifest.files.items()):
            data = self._system.read(f"{INCOMING}/{name}", MAX_FILE_BYTES)
            if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
                raise RefusalError(f"{name} is not what the manifest says: its digest differs")
            if name == manifest.bitstream:
                check_bitstream(data, board)
        return manifest

    def _check_signature(self, content: bytes, is_signed: bool) -> None:
        keys = trusted_keys(self._system)
        if not keys:
            return
        if not is_signed:
            raise RefusalError(
                "this board takes signed applications only, and this one is not signed"
            )
        signature = self._system.read(f"{INCOMING}/{SIGNATURE}", ed25519.SIGNATURE_BYTES)
        if not any(ed25519.verify(key, content, signature) for key in keys):
            raise RefusalError(
                f"the application is signed by none of the {len(keys)} keys it trusts"
            )


def check_bitstream(data: bytes, board: Board) -> None:
    """Looks into a bitstream in the FPGA manager's byte order.

    Raises:
        RefusalError: it is none, or is made for other logic than the board's.
    """
    head = configuration.swap_words(data[: configuration.SEARCH_BYTES])
    try:
        found = configuration.idcode(head)
    except configuration.ConfigurationError as error:
        raise RefusalError(f"the bitstream is unusable: {error}") from None
    if not board.accepts_idcode(found):
        raise RefusalError(
            f"the bitstream is for a device with IDCODE {found:#010x}, and {board.title} has "
            f"{board.idcode:#010x}"
        )
