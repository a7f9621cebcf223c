"""Downloads a checkpoint from the Hugging Face hub, then opens it like a local one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from edgerun.errors import CheckpointError, MissingDependencyError
from edgerun_export.checkpoint.base import Checkpoint
from edgerun_export.checkpoint.registry import open_local

# Data only: no pickles, no Python files.
_SAFE_FILES = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "README.md",
)

# Exception name -> what it means to the user; matched along the class's ancestry, first hit wins.
_REASONS = {
    "GatedRepoError": "access is gated: accept its terms on the hub and run 'hf auth login'",
    "RepositoryNotFoundError": "there is no such public repository; check the id, or log in",
    "RevisionNotFoundError": "there is no such revision",
    "EntryNotFoundError": "the repository has no such file",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set and it is not in the local cache",
    "LocalEntryNotFoundError": "the hub cannot be reached and it is not in the local cache",
    "HFValidationError": "it is not a valid hub id",
    "HfHubHTTPError": "the hub answered with an error",
    "OSError": "the hub cannot be reached",
    "HTTPError": "the hub cannot be reached",
}


def open_hub(hub_id: str, revision: str | None = None) -> Checkpoint:
    """Open ``owner/name`` or ``owner/name/file.gguf``.

    Args:
        hub_id: repository, with a file for GGUF.
        revision: branch, tag or commit; the default branch otherwise.

    Raises:
        CheckpointError: not found, gated, offline, or broken once downloaded.
        MissingDependencyError: huggingface_hub is not installed.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingDependencyError(
            f"downloading '{hub_id}' needs huggingface_hub: pip install 'edgerun[export]'"
        ) from error
    try:
        path, commit = _download(huggingface_hub, hub_id, revision)
    except Exception as error:
        reason = _reason(error)
        if reason is None:
            raise
        raise CheckpointError(f"cannot download '{hub_id}' from the hub: {reason}") from error
    checkpoint = open_local(path)
    checkpoint.source = dataclasses.replace(checkpoint.source, location=hub_id, revision=commit)
    return checkpoint


def _download(hub: Any, hub_id: str, revision: str | None) -> tuple[Path, str]:
    """Fetch into the cache; the snapshot's folder is named after the commit."""
    owner, name, *file = hub_id.split("/")
    repository = f"{owner}/{name}"
    if file:
        path = Path(hub.hf_hub_download(repository, file[0], revision=revision))
        return path, path.parent.name
    folder = Path(
        hub.snapshot_download(repository, revision=revision, allow_patterns=list(_SAFE_FILES))
    )
    return folder, folder.name


def _reason(error: BaseException) -> str | None:
    for kind in type(error).__mro__:
        if kind.__name__ in _REASONS:
            return _REASONS[kind.__name__]
    return None
