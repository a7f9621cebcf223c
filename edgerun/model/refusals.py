"""Why there is no model where one was looked for: a sentence that says what is there instead."""

from __future__ import annotations

import os
import stat
from pathlib import Path

GGUF, GGUF_SUFFIX = b"GGUF", ".gguf"
LLAMA2C_SUFFIX = ".bin"
POINTER = b"version https://git-lfs.github.com/spec/"  # what Git has in place of a large file
EXPECTED = "the folder of a bundle or of a checkpoint, or a GGUF file"
MOST_NAMES = 3  # of files in a folder that are told


def why_no_model(path: Path) -> str:
    """Says why a path that is neither a bundle nor a checkpoint is none.

    Args:
        path: of anything, or of nothing.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return _of_folder(path)
        beginning = _beginning(path) if stat.S_ISREG(mode) else None
    except (FileNotFoundError, NotADirectoryError, ValueError):  # no path is written so
        return f"there is no model at {path}: give {EXPECTED}, or hf:owner/name"
    except OSError as error:
        return f"cannot read {path}: {error.strerror}; expected a model that this user may read"
    if beginning is not None:
        if beginning == POINTER:
            return (
                f"{path} is a pointer of Git LFS and not the file itself: fetch that with "
                "`git lfs pull`, or download it again"
            )
        if path.suffix.lower() == GGUF_SUFFIX:
            has = "does not begin with 'GGUF'" if beginning else "is empty"
            return f"{path} {has}, so it is no GGUF file: download it again"
    hint = "; `edgerun export` makes a bundle of a llama2.c file"
    return f"{path} is no model: expected {EXPECTED}{hint if path.suffix == LLAMA2C_SUFFIX else ''}"


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(POINTER))


def _of_folder(path: Path) -> str:
    names = sorted(name for name in os.listdir(path) if name.endswith(GGUF_SUFFIX))
    os.stat(path / os.curdir)  # a folder may be listed by somebody who may not read its files
    if len(names) > 1:
        more = ", ..." if len(names) > MOST_NAMES else ""
        return (
            f"{path} holds {len(names)} GGUF files ({', '.join(names[:MOST_NAMES])}{more}): "
            "name the one that is meant"
        )
    return (
        f"{path} is no edgerun bundle: it has no manifest.json, nor is it a checkpoint with "
        "config.json and safetensors, or a GGUF file"
    )
