"""Checkpoints that are loaded as they are: the exporter makes a bundle of each, once.

Such a bundle lies in the cache folder and is made anew when the checkpoint has changed. It has the
formats that the exporter takes by itself; whoever wants others exports. ``hf:owner/name`` is a
checkpoint of Hugging Face's hub; it is fetched once, and never looked for under such a name here,
so that a folder whose name was mistyped asks nobody.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from edgerun._version import __version__
from edgerun.env import settings
from edgerun.errors import InputError, MissingDependencyError, StorageError
from edgerun.files.private import private_folder
from edgerun.model.bundle_files import GENAI_CONFIG, MANIFEST
from edgerun.values import Notice

EXPORTERS = (
    "edgerun.exporters"  # entry points: functions of a checkpoint, a folder and ``progress``
)
FOLDER = "models"  # in the cache folder
HUB = "hf:"
CONFIG, GGUF = "config.json", b"GGUF"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.gguf")
Progress = Callable[[str], None]


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether something is a GGUF file, a folder of Hugging Face's with weights, or on its hub."""
    if os.fspath(path).startswith(HUB):
        return True
    path = Path(path)
    try:
        if path.is_dir():
            is_bundle = any(os.path.lexists(path / name) for name in (MANIFEST, GENAI_CONFIG))
            return not is_bundle and any(True for _ in _weights(path))
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as file:
            return file.read(len(GGUF)) == GGUF
    except (OSError, ValueError):  # nothing is there, or no path is written so
        return False


def bundle_of(checkpoint: Path, progress: Progress) -> Path:
    """The folder of a checkpoint's bundle, which is made if it is not there.

    Args:
        checkpoint: see ``is_checkpoint``.
        progress: told when something is made, and every ten seconds how far it is.

    Raises:
        InputError: the checkpoint is broken, or a model that is not supported.
        MissingDependencyError: the exporter, or what it needs, is not installed.
        StorageError: the cache folder cannot be written.
    """
    models = settings().cache_dir / FOLDER
    source, facts, name = _described(checkpoint)
    versions = models / _digest(source)
    folder = versions / _digest(facts) / name
    if os.path.lexists(folder / MANIFEST):
        return folder
    export = _exporter()
    progress(Notice(f"making a bundle of {checkpoint}, once; `edgerun export` chooses its formats"))
    begin = time.monotonic()
    try:
        private_folder(models)
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make a bundle in {models}: {error.strerror}") from error
    try:
        export(source, folder, progress)
    except InputError:
        if not os.path.lexists(folder / MANIFEST):  # else another process was faster
            raise
    progress(Notice(f"made it in {time.monotonic() - begin:.0f} s, in {folder}"))
    for other in versions.iterdir():
        if other != folder.parent:  # of what the checkpoint was before
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _exporter() -> Callable[[str, Path, Progress], None]:
    from importlib.metadata import entry_points  # takes 30 ms to import

    for point in entry_points(group=EXPORTERS):
        export: Callable[[str, Path, Progress], None] = point.load()
        return export
    raise MissingDependencyError(
        "this is a checkpoint, and the exporter, which makes bundles of them, is not installed: "
        "pip install 'edgerun[export]'"
    )


def _weights(folder: Path) -> Iterator[Path]:
    if (folder / CONFIG).is_file():
        for pattern in WEIGHTS:
            yield from folder.glob(pattern)


def _described(checkpoint: Path) -> tuple[str, str, str]:
    """Where a checkpoint is, what is other when it has changed, and a name for its bundle."""
    text = os.fspath(checkpoint)
    if text.startswith(HUB):
        return text, __version__, text.rpartition("/")[2].removesuffix(".gguf") or "model"
    real = checkpoint.resolve()
    return os.fspath(real), _facts(real), real.stem or "model"


def _facts(checkpoint: Path) -> str:
    """What is other for files that have changed, and for another edgerun."""
    files = sorted(checkpoint.iterdir()) if checkpoint.is_dir() else [checkpoint]
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    return json.dumps([__version__, *([name, s.st_size, s.st_mtime_ns] for name, s in stats)])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
