"""Saved sessions: one checksummed file, written all or not at all.

Format: a header line ``edgerun-session 1 <sha256 of the payload> <bytes of the payload>`` and the
payload, JSON in UTF-8. Keys and values are not saved; they are computed again from the messages.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgerun.errors import SessionError, StorageError
from edgerun.files.json_parts import has_more_parts
from edgerun.files.plain import NotPlainError, read_plain
from edgerun.files.private import read_private, write_atomically
from edgerun.values import shown

MAGIC = "edgerun-session"
VERSION = 1
MAX_BYTES = 64 << 20
HEADER_BYTES = 256
MAX_PARTS = 1 << 19  # of its JSON, each of which may take 200 bytes of memory
ROLES = frozenset({"system", "user", "assistant", "tool", "developer"})
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
TEXTS = frozenset({"role", "content", *THOUGHTS, "tool_call_id", "name"})
REQUIRED, CALLS = frozenset({"role", "content"}), "tool_calls"


def save_session(
    path: Path, model_digest: str, messages: Sequence[Mapping[str, Any]], *, private: bool = False
) -> None:
    """Writes a session file; an existing one is replaced in one step.

    Args:
        path: of the file.
        model_digest: digest of the bundle's manifest.
        messages: the conversation, as ``{"role": ..., "content": ...}``, with what was thought and
            called where that was so (``reasoning_content``, ``tool_calls``), and what came of it.
        private: a link in its place is replaced, and what it leads to left alone; otherwise that
            is written, and a link stays a link.

    Raises:
        SessionError: a message is not of the kind that can be kept, the session is larger than
            ``MAX_BYTES`` or has more than ``MAX_PARTS``, or the path is none or that of a folder, a
            device or a pipe.
        StorageError: the folder is not writable or the disk is full.
    """
    checked = []
    for index, message in enumerate(messages):
        try:
            checked.append(_message(message))
        except (TypeError, AttributeError) as error:
            raise SessionError(
                f"message {index} cannot be saved: {error}; expected a role and a text as content"
            ) from error
    content = {"model_digest": model_digest, "messages": checked}
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    payload = text.encode("utf-8", "surrogatepass")
    if len(payload) > MAX_BYTES:
        raise SessionError(f"the session has {len(payload)} bytes; at most {MAX_BYTES} can be kept")
    if has_more_parts(payload, MAX_PARTS):
        raise SessionError(f"the session has over {MAX_PARTS} parts, which are too many to be kept")
    digest = hashlib.sha256(payload).hexdigest()
    header = f"{MAGIC} {VERSION} {digest} {len(payload)}\n".encode()
    try:
        target = path if private else Path(os.path.realpath(path))
        write_atomically(target, header + payload, durable=True)
    except NotPlainError as error:
        raise SessionError(f"cannot save the session to {path}: {error.strerror}") from error
    except OSError as error:
        raise StorageError(f"cannot save the session to {path}: {error.strerror}") from error
    except ValueError as error:  # a null character
        raise SessionError(f"cannot save the session to {str(path)!r}: {error}") from error


def is_session(path: Path) -> bool:
    """Whether a file begins as saved sessions do; False for what cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC.encode()
    except OSError:
        return False


def load_session(path: Path, model_digest: str, *, private: bool = False) -> list[dict[str, Any]]:
    """Reads the messages of a session file.

    Args:
        path: of the file.
        model_digest: of the model that is to go on.
        private: read no link, and nothing that somebody else could have written.

    Raises:
        SessionError: the file is missing, broken, of another version, or of another model, or
            somebody else could have written one that is private.
    """
    most = MAX_BYTES + HEADER_BYTES
    try:
        data = (
            read_private(path, most) if private else read_plain(Path(os.path.realpath(path)), most)
        )
        digest, messages = _parse(path, data)
        del data
    except OSError as error:
        raise SessionError(f"cannot read the session {path}: {error.strerror}") from error
    except ValueError as error:  # a null character
        raise SessionError(f"cannot read the session {str(path)!r}: {error}") from error
    if digest != model_digest:
        raise SessionError(
            f"the session {path} belongs to another model (digest {digest[:12]}, this one is "
            f"{model_digest[:12]}): load that model, or start a new chat"
        )
    return messages


def _parse(path: Path, data: bytes) -> tuple[str, list[dict[str, Any]]]:
    """The digest of the model and the messages."""
    header, newline, payload = data.partition(b"\n")
    del data  # of which there may be as much as MAX_BYTES, and so of payload and text
    fields = header.decode("ascii", "replace").split(" ")
    if not newline or len(fields) != 4 or fields[0] != MAGIC:
        raise SessionError(f"{path} is not a saved session: it lacks the header line")
    if fields[1] != str(VERSION):
        raise SessionError(f"{path} has session version {fields[1][:20]!r}; expected {VERSION}")
    if fields[2:] != [hashlib.sha256(payload).hexdigest(), str(len(payload))]:
        raise SessionError(f"the session {path} is damaged: its checksum or length does not match")
    if has_more_parts(payload, MAX_PARTS):
        raise SessionError(f"the session {path} has over {MAX_PARTS} parts; no chat has so many")
    try:
        text = payload.decode("utf-8", "surrogatepass")
        del payload
        content = json.loads(text)
        return _text(content["model_digest"]), [_message(value) for value in content["messages"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SessionError(f"the session {path} has unexpected content: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is not a text")
    return value


def _message(value: Any) -> dict[str, Any]:
    message: dict[str, Any] = {
        _text(key): _calls(item) if key == CALLS else _text(item)
        for key, item in value.items()
        if item is not None or CALLS not in value  # a message that calls may have no content
    }
    message.setdefault("content", "") if CALLS in message else None
    names = message.keys() - {CALLS}
    if not REQUIRED <= names <= TEXTS or message["role"] not in ROLES:
        raise TypeError(
            f"message of {shown(sorted(message))} with role {shown(message.get('role'))}"
        )
    return message


def _calls(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise TypeError("calls that are no list")
    return [_call(**call) for call in value]


def _call(*, id: Any, type: Any, function: Any) -> dict[str, Any]:  # noqa: A002, names of the file
    if type != "function" or set(function) != {"name", "arguments"}:
        raise TypeError("a call of something else than a function")
    texts = {_text(key): _text(item) for key, item in function.items()}
    return {"id": _text(id), "type": type, "function": texts}
