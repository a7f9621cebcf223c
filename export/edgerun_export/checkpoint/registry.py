"""Finds the reader for a path or hub id by looking at the content.

A reader is a module of this package, named in ``_READERS``, with::

    def claims(path: Path) -> bool                     # is this file or folder mine? never raises
    def open_path(path: Path, tokenizer: Path | None) -> Checkpoint
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun.llm.checkpoints import HUB, HUB_ID
from edgerun_export.checkpoint.base import Checkpoint
from edgerun_export.checkpoint.files import check_inside
from edgerun_export.checkpoint.gguf_parts import first_of_all
from edgerun_export.checkpoint.views.gathered.delta import with_joined_delta
from edgerun_export.checkpoint.views.gathered.head_norms import with_joined_norms
from edgerun_export.checkpoint.views.latent import with_single_heads

# Order matters only for llama2c, whose oldest version has no magic number: it comes last.
_READERS = ("gguf", "safetensors", "llama2c")
_PICKLED = ("PK\x03\x04", "\x80\x02", "\x80\x03", "\x80\x04", "\x80\x05")


class Reader(Protocol):
    """What a reader module provides."""

    def claims(self, path: Path) -> bool:
        """Tell whether the path looks like this format."""
        ...

    def open_path(self, path: Path, tokenizer: Path | None) -> Checkpoint:
        """Open it."""
        ...


def open_checkpoint(
    path_or_id: str, *, revision: str | None = None, tokenizer: str | None = None
) -> Checkpoint:
    """Open a checkpoint on this machine or on the Hugging Face hub.

    Args:
        path_or_id: a file (``.gguf``, ``.safetensors``, llama2.c ``.bin``), a folder with
            ``config.json`` and safetensors or with one ``.gguf``, a hub id ``owner/name``, or a
            GGUF file on the hub, ``owner/name/file.gguf``. With ``hf:`` before it, it is one of the
            hub, whatever is on this machine.
        revision: branch, tag or commit of a hub id.
        tokenizer: a llama2.c tokenizer file, for formats that carry none.

    Raises:
        CheckpointError: nothing is there, or it is broken.
        UnsupportedError: it is a format that is not read, for example a pickle.
        MissingDependencyError: a hub id without the huggingface_hub package.

    Example:
        >>> with open_checkpoint("models/stories260K.bin") as checkpoint:
        ...     checkpoint.read("model.norm.weight")
    """
    is_hub = path_or_id.startswith(HUB)
    path_or_id = path_or_id.removeprefix(HUB)
    try:
        path = Path(path_or_id).expanduser()
        exists = path.exists() and not is_hub
    except (OSError, RuntimeError, ValueError) as error:  # the home folder of nobody here
        raise CheckpointError(f"'{path_or_id[:200]}' is not a usable path") from error
    if not path_or_id:
        raise CheckpointError(
            "the checkpoint's name is empty; give a path or a hub id 'owner/name'"
        )
    if exists and revision:
        raise CheckpointError(
            f"--revision {revision} is for hub ids and '{path_or_id}' is a local path; leave it out"
        )
    if exists:
        return open_local(path, Path(tokenizer) if tokenizer else None)
    if HUB_ID.fullmatch(path_or_id) is None:
        raise CheckpointError(
            f"'{path_or_id}' is no hub id; give 'owner/name' or 'owner/name/file.gguf'"
            if is_hub
            else f"no file or folder '{path_or_id}'; give a path that exists or a hub id "
            "'owner/name'"
        )
    from edgerun_export.checkpoint import hub

    downloaded, commit = hub.download(path_or_id, revision)
    checkpoint = open_local(downloaded, Path(tokenizer) if tokenizer else None)
    checkpoint.source = dataclasses.replace(checkpoint.source, location=path_or_id, revision=commit)
    return checkpoint


def open_local(path: Path, tokenizer: Path | None = None) -> Checkpoint:
    """Open a file or folder that exists; see :func:`open_checkpoint`."""
    path = _sole_gguf(path) if path.is_dir() else path
    for name in _READERS:
        reader = _reader(name)
        if reader.claims(path):
            checkpoint = with_single_heads(reader.open_path(path, tokenizer))
            return with_joined_delta(with_joined_norms(checkpoint))
    files = sorted([*path.glob("*.bin"), *path.glob("*.pt*")]) if path.is_dir() else [path]
    _refuse_folder_of_llama2c(path, files)
    _refuse_pickles(path, files)
    raise CheckpointError(
        f"'{path}' is not a checkpoint that can be read: expected a folder with config.json and "
        "model.safetensors, a GGUF file, or a llama2.c .bin file"
    )


def head(path: Path, count: int) -> bytes:
    """First bytes of a regular file; empty for anything else."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(count)
    except OSError:
        return b""


def _sole_gguf(folder: Path) -> Path:
    """The GGUF file of a folder that is not a Hugging Face one."""
    files = sorted(folder.glob("*.gguf"))
    if not files or (folder / "config.json").exists():
        return folder
    first = files[0] if len(files) == 1 else first_of_all(files)
    if first is None:
        names = ", ".join(path.name for path in files[:8])
        raise CheckpointError(f"'{folder}' holds several GGUF files ({names}); name one of them")
    check_inside(first)
    return first


def _reader(name: str) -> Reader:
    return cast(Reader, importlib.import_module(f"edgerun_export.checkpoint.{name}"))


def _refuse_folder_of_llama2c(path: Path, files: Sequence[Path]) -> None:
    own = [file for file in files if _reader("llama2c").claims(file)]
    if own:
        raise CheckpointError(
            f"'{path}' is a folder with {len(own)} llama2.c files and no other checkpoint; give "
            f"the file itself, such as '{own[0]}'"
        )


def _refuse_pickles(path: Path, files: Sequence[Path]) -> None:
    if any(head(file, 4).decode("latin-1").startswith(_PICKLED) for file in files):
        raise UnsupportedError(
            f"'{path}' holds PyTorch pickle files, which can run code when opened and are never "
            "loaded; use the safetensors version of the model, or convert it with "
            "safetensors.torch.save_file in a sandbox"
        )
