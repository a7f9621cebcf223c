"""Saved sessions: one checksummed file, written all or not at all.

Format: a header line ``edgerun-session 1 <sha256 of the payload> <bytes of the payload>`` and the
payload, JSON in UTF-8. Keys and values are not saved; they are computed again from the ids.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgerun.errors import SessionError, StorageError
from edgerun.files.plain import NotPlainError, read_plain
from edgerun.files.private import write_atomically

MAGIC = "edgerun-session"
VERSION = 1
MAX_BYTES = 64 << 20
HEADER_BYTES = 256
MAX_ID = 2**31 - 1
ROLES = frozenset({"system", "user", "assistant", "tool", "developer"})


@dataclass(frozen=True, slots=True)
class SavedSession:
    """What a session file holds.

    Attributes:
        model_digest: digest of the bundle's manifest.
        ids: ids that were cached.
        messages: the conversation, as ``{"role": ..., "content": ...}``.
    """

    model_digest: str
    ids: tuple[int, ...]
    messages: tuple[Mapping[str, str], ...]


def save_session(path: Path, saved: SavedSession) -> None:
    """Writes a session file; an existing one is replaced in one step.

    Raises:
        SessionError: a message is not of the kind that can be kept, the session is larger than
            ``MAX_BYTES``, or the path is none or that of a folder, a device or a pipe.
        StorageError: the folder is not writable or the disk is full.
    """
    for index, message in enumerate(saved.messages):
        try:
            _message(message)
        except (TypeError, AttributeError) as error:
            raise SessionError(
                f"message {index} cannot be saved: {error}; expected a role and a text as content"
            ) from error
    payload = json.dumps(
        {
            "model_digest": saved.model_digest,
            "ids": list(saved.ids),
            "messages": [dict(message) for message in saved.messages],
        },
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode("utf-8", "surrogatepass")
    if len(payload) > MAX_BYTES:
        raise SessionError(f"the session has {len(payload)} bytes; at most {MAX_BYTES} can be kept")
    digest = hashlib.sha256(payload).hexdigest()
    header = f"{MAGIC} {VERSION} {digest} {len(payload)}\n".encode()
    try:
        target = Path(os.path.realpath(path))  # a link stays a link
        write_atomically(target, header + payload, durable=True)
    except NotPlainError as error:
        raise SessionError(f"cannot save the session to {path}: {error.strerror}") from error
    except OSError as error:
        raise StorageError(f"cannot save the session to {path}: {error.strerror}") from error
    except ValueError as error:  # a null character
        raise SessionError(f"cannot save the session to {str(path)!r}: {error}") from error


def load_session(path: Path, model_digest: str) -> SavedSession:
    """Reads a session file.

    Raises:
        SessionError: the file is missing, broken, of another version, or of another model.
    """
    try:
        data = read_plain(Path(os.path.realpath(path)), MAX_BYTES + HEADER_BYTES)
    except OSError as error:
        raise SessionError(f"cannot read the session {path}: {error.strerror}") from error
    except ValueError as error:  # a null character
        raise SessionError(f"cannot read the session {str(path)!r}: {error}") from error
    saved = _parse(path, data)
    if saved.model_digest != model_digest:
        raise SessionError(
            f"the session {path} belongs to another model (digest {saved.model_digest[:12]}, this "
            f"one is {model_digest[:12]}): load that model, or start a new chat"
        )
    return saved


def _parse(path: Path, data: bytes) -> SavedSession:
    header, newline, payload = data.partition(b"\n")
    fields = header.decode("ascii", "replace").split(" ")
    if not newline or len(fields) != 4 or fields[0] != MAGIC:
        raise SessionError(f"{path} is not a saved session: it lacks the header line")
    if fields[1] != str(VERSION):
        raise SessionError(f"{path} has session version {fields[1][:20]!r}; expected {VERSION}")
    if fields[2:] != [hashlib.sha256(payload).hexdigest(), str(len(payload))]:
        raise SessionError(f"the session {path} is damaged: its checksum or length does not match")
    try:
        content = json.loads(payload)
        return SavedSession(
            _text(content["model_digest"]),
            tuple(_id(id_) for id_ in content["ids"]),
            tuple(_message(message) for message in content["messages"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SessionError(f"the session {path} has unexpected content: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _id(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_ID:
        raise TypeError(f"{value!r} is not a token id")
    return value


def _message(value: Any) -> dict[str, str]:
    message = {_text(key): _text(item) for key, item in value.items()}
    if set(message) != {"role", "content"} or message["role"] not in ROLES:
        raise TypeError(f"message of {sorted(message)} with role {message.get('role')!r}")
    return message
