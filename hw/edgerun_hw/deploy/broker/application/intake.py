"""Takes an upload in, and lets nothing through that is not what its manifest says."""

from __future__ import annotations

from ..board.boards import Board
from ..board.policy import Policy
from ..board.system import NewFile, System
from ..errors import ProtocolError, RefusalError
from ..protocol import MAX_FILE_BYTES
from .check import check_application
from .manifest import MANIFEST, SIGNATURE, Manifest, file_kinds
from .store import INCOMING

MAX_TOTAL_BYTES = MAX_FILE_BYTES + (2 << 20)


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
        self._names = (MANIFEST, SIGNATURE, *file_kinds(application))

    def put(self, name: str, size: int) -> None:
        """Starts a file.

        Raises:
            ProtocolError: the one before is not complete.
            RefusalError: too much in all, or the name is no application's or is there already.
        """
        if self._file is not None:
            raise ProtocolError("the file before is not complete")
        if name not in self._names:  # which bounds their number, too
            raise RefusalError(
                f"{name} is no file of an application: those of {self._application} are "
                f"{', '.join(self._names)}"
            )
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

    def seal(self, board: Board, policy: Policy, floor: int) -> Manifest:
        """Checks everything that has come, as it lies on the disk.

        Args:
            board: this one.
            policy: of this board.
            floor: highest release confirmed on it.

        Raises:
            RefusalError: the manifest, a digest, the signature, the bitstream or the overlay is
                wrong, or the application is older than is allowed.
        """
        if self._file is not None:
            raise ProtocolError("the last file is not complete")
        manifest = check_application(
            self._system, INCOMING, self._application, self._digest, board, policy
        )
        policy.check_release(manifest.release, floor)
        return manifest
