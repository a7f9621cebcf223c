"""What this board takes: its file of trusted keys, and what its owner has allowed besides.

    /etc/edgerun/fpga-keys.pem   Ed25519 public keys, of which one must have signed
    /etc/edgerun/fpga.json       {"board": "kv260", "allow_unsigned": true, "allow_older": true}

Both are optional, and each entry of the second as well. Without keys and without
``allow_unsigned`` nothing is taken. A file that is there and cannot be read, or that somebody else
than its owner could have written, stops everything: better nothing than anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import BrokerError, FailureError, RefusalError
from ..formats import ed25519
from ..protocol import parse_object
from .boards import BOARDS
from .system import System

FOLDER = "etc/edgerun"
KEYS, SETTINGS = f"{FOLDER}/fpga-keys.pem", f"{FOLDER}/fpga.json"
MAX_KEYS_BYTES, MAX_SETTINGS_BYTES = 64 * 1024, 4096
ENTRIES: dict[str, type] = {"board": str, "allow_unsigned": bool, "allow_older": bool}


@dataclass(frozen=True)
class Policy:
    """What this board takes.

    Attributes:
        keys: public keys of 32 bytes; empty if there is no file of keys.
        board: name of the board, for a device tree that names only its module or processor.
        allow_unsigned: whether an application needs no signature; counts only without keys.
        allow_older: whether an application may be of a lower release than one confirmed before.
    """

    keys: tuple[bytes, ...] = ()
    board: str | None = None
    allow_unsigned: bool = False
    allow_older: bool = False

    @property
    def needs_signature(self) -> bool:
        """Whether nothing unsigned is taken."""
        return bool(self.keys) or not self.allow_unsigned

    def check_signature(self, manifest: bytes, signature: bytes | None) -> None:
        """Checks who has signed a manifest.

        Raises:
            RefusalError: nobody that this board trusts.
        """
        if not self.needs_signature:
            return
        if not self.keys:
            raise RefusalError(
                f"this board has no trusted keys: put yours into /{KEYS}, or allow applications "
                f'without a signature with {{"allow_unsigned": true}} in /{SETTINGS}'
            )
        if signature is None:
            raise RefusalError(
                "this board takes signed applications only, and this one is not signed"
            )
        if not any(ed25519.verify(key, manifest, signature) for key in self.keys):
            raise RefusalError(
                f"the application is signed by none of the {len(self.keys)} keys this board trusts"
            )

    def check_release(self, release: int, floor: int) -> None:
        """Checks that an application is not older than what the board has confirmed.

        Without keys anybody who may deploy chooses the number, so that it says nothing.

        Args:
            release: of the application.
            floor: highest release confirmed on this board.

        Raises:
            RefusalError: it is older.
        """
        if self.keys and release < floor and not self.allow_older:
            raise RefusalError(
                f"the application is release {release}, and this board has confirmed release "
                f'{floor}: it goes back only with {{"allow_older": true}} in /{SETTINGS}'
            )


def read_policy(system: System) -> Policy:
    """Reads both files.

    Raises:
        FailureError: one of them is there and unusable.
    """
    keys = _owned(system, KEYS, MAX_KEYS_BYTES)
    settings = _owned(system, SETTINGS, MAX_SETTINGS_BYTES)
    try:
        trusted = () if keys is None else tuple(ed25519.read_keys(keys))
    except ValueError as error:
        raise FailureError(
            f"the board's file of trusted keys /{KEYS} is unusable: {error}"
        ) from None
    return Policy(trusted, **_entries(settings))


def _entries(data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {}
    try:
        entries = parse_object(data, MAX_SETTINGS_BYTES)
    except BrokerError as error:
        raise FailureError(f"the board's file /{SETTINGS} is unusable: {error}") from None
    for name, value in entries.items():
        if type(value) is not ENTRIES.get(name):
            raise FailureError(
                f"the board's file /{SETTINGS} is unusable: {name!r} is unknown or has a value of "
                f"the wrong kind; there are {', '.join(ENTRIES)}"
            )
    if entries.get("board", next(iter(BOARDS))) not in BOARDS:
        raise FailureError(
            f"the board's file /{SETTINGS} names the board {entries['board']!r}: there are "
            f"{', '.join(BOARDS)}"
        )
    return entries


def _owned(system: System, path: str, limit: int) -> bytes | None:
    try:
        return system.read_owned(path, limit)
    except FileNotFoundError:
        return None
    except (OSError, RefusalError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        raise FailureError(f"the board's file /{path} is unusable: {text}") from None
