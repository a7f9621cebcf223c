"""Downloads a checkpoint from the Hugging Face hub.

The configuration comes first, and then the tokenizer: whoever asks for a model that cannot be
exported learns it before gigabytes of weights have been downloaded.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from edgerun.errors import CheckpointError, MissingDependencyError, StorageError
from edgerun.model.bundle_files import MAX_BYTES, TOKENIZER
from edgerun_export.architectures import describe
from edgerun_export.checkpoint.files import (
    CONFIG_LIMIT_BYTES,
    decode_config,
    optional_reader,
    read_small,
)
from edgerun_export.checkpoint.gguf_parts import other_names
from edgerun_export.checkpoint.views.compressed_config import integer_weights_of
from edgerun_export.checkpoint.views.fp8_config import scaling_of
from edgerun_export.checkpoint.views.packed_config import packing_of
from edgerun_export.tokenizers import from_hugging_face

logger = logging.getLogger(__name__)

_CONFIG = "config.json"
# Data only: no pickles, no Python files.
_SMALL_FILES = (
    _CONFIG,
    "generation_config.json",
    "hf_quant_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    "tekken.json",
    "README.md",
)
_ATTEMPTING = "huggingface_hub.utils._http"  # its logger
_ATTEMPTS = ("thrown while requesting", "Retrying in")
_WEIGHTS = ("model*.safetensors", "model.safetensors.index.json")

_GIT_SHA1, _SHA256 = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}")
_PIECE_BYTES = 4 << 20

_NO_FILE = (
    "the repository has no such file; where it has no config.json, name a GGUF file of it: "
    "owner/name/file.gguf"
)

# Exception name -> what it means to the user; matched along the class's ancestry, first hit wins.
_REASONS = {
    "GatedRepoError": "access is gated: accept its terms on the hub and run 'hf auth login'",
    "RepositoryNotFoundError": "there is no such public repository; check the id, or log in",
    "RevisionNotFoundError": "there is no such revision",
    "RemoteEntryNotFoundError": _NO_FILE,
    "EntryNotFoundError": _NO_FILE,
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set and it is not in the local cache",
    "LocalEntryNotFoundError": "the hub cannot be reached and it is not in the local cache",
    "HFValidationError": "it is not a valid hub id",
    "HfHubHTTPError": "the hub answered with an error",
    "OSError": "the hub cannot be reached",
    "HTTPError": "the hub cannot be reached",
}
# What a folder or a disk says of itself; other errors of the system are those of the network.
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def download(hub_id: str, revision: str | None = None) -> tuple[Path, str]:
    """Download ``owner/name`` or ``owner/name/file.gguf``.

    Args:
        hub_id: repository, with a file for GGUF.
        revision: branch, tag or commit; the default branch otherwise.

    Returns:
        the folder or file in the hub's cache, and its commit.

    Raises:
        CheckpointError: not found, gated or offline, without a tokenizer, or damaged.
        UnsupportedError: the repository's configuration describes a model that cannot be exported,
            or weights that are stored in a way that is not read.
        MissingDependencyError: huggingface_hub is not installed.
        StorageError: the disk is full, or the hub's cache cannot be written.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingDependencyError(
            f"downloading '{hub_id}' needs huggingface_hub: pip install 'edgerun[export]'"
        ) from error
    try:
        with _told_once(hub_id):
            return _download(huggingface_hub, hub_id, revision)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
            where = f" ({error.filename})" if error.filename else ""
            raise StorageError(
                f"cannot keep what is downloaded of '{hub_id}': {error.strerror}{where}"
            ) from error
        reason = _reason(error)
        if reason is None:
            raise
        raise CheckpointError(f"cannot download '{hub_id}' from the hub: {reason}") from error


@contextmanager
def _told_once(hub_id: str) -> Iterator[None]:
    """Says in one line that the hub does not answer, where its library does with every attempt."""
    told: list[str] = []

    def passes(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if not any(words in message for words in _ATTEMPTS):
            return True
        if not told:
            told.append(message)
            logger.warning("the hub does not answer for '%s': trying for half a minute", hub_id)
        return False

    attempts = logging.getLogger(_ATTEMPTING)
    attempts.addFilter(passes)
    try:
        yield
    finally:
        attempts.removeFilter(passes)


def _download(hub: Any, hub_id: str, revision: str | None) -> tuple[Path, str]:
    """Fetch into the cache; the snapshot's folder is named after the commit."""
    owner, name, *file = hub_id.split("/")
    repository = f"{owner}/{name}"
    if file:
        path = Path(hub.hf_hub_download(repository, file[0], revision=revision))
        commit = path.parent.name
        others = [
            hub.hf_hub_download(repository, other, revision=commit)
            for other in other_names(file[0])
        ]
        for each in (path, *map(Path, others)):
            _check_digest(each)
        return path, commit
    config = Path(hub.hf_hub_download(repository, _CONFIG, revision=revision))
    keys = decode_config(read_small(config, CONFIG_LIMIT_BYTES), _CONFIG)
    describe(keys)
    # Both refuse layers that cannot be read.
    packing_of(keys)
    integer_weights_of(keys)
    commit = config.parent.name  # what was checked is what is downloaded

    def fetch(patterns: tuple[str, ...]) -> Path:
        options = {"revision": commit, "allow_patterns": list(patterns)}
        folder = Path(hub.snapshot_download(repository, **options))
        for path in folder.iterdir():
            if any(fnmatch(path.name, pattern) for pattern in patterns):
                _check_digest(path)
        return folder

    read = optional_reader(fetch(_SMALL_FILES), MAX_BYTES[TOKENIZER])
    scaling_of(keys, read)  # refuses floats that cannot be read
    from_hugging_face(read)
    folder = fetch(_WEIGHTS)
    return folder, folder.name


def _check_digest(path: Path) -> None:
    """Checks the content of a file, of which the hub's own library looks at the size alone.

    In the hub's cache a file is a link to a blob, whose name is the digest that the hub has of it:
    SHA-256 of large files, that of Git of others. Where there are no links, nothing says it.

    Raises:
        CheckpointError: it has another.
    """
    blob = path.resolve()
    if not path.is_symlink() or blob.parent.name != "blobs":
        return
    if _SHA256.fullmatch(blob.name):
        digest = hashlib.sha256()
    elif _GIT_SHA1.fullmatch(blob.name):
        header = f"blob {blob.stat().st_size}\0".encode()
        digest = hashlib.sha1(header, usedforsecurity=False)
    else:
        return
    with blob.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    if digest.hexdigest() != blob.name:
        raise CheckpointError(
            f"'{path.name}' is damaged: its digest is {digest.hexdigest()}, and the hub's is "
            f"{blob.name}; remove '{blob}' and run the command again, which downloads it anew"
        )


def _reason(error: BaseException) -> str | None:
    for kind in type(error).__mro__:
        if kind.__name__ in _REASONS:
            return _REASONS[kind.__name__]
    return None
