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
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from edgerun._version import __version__
from edgerun.env import settings
from edgerun.errors import BundleError, InputError, MissingDependencyError, StorageError
from edgerun.files.drafts import SUFFIX, remove_abandoned
from edgerun.files.private import private_folder
from edgerun.model.bundle_files import AGAIN, GENAI_CONFIG, MANIFEST
from edgerun.model.refusals import GGUF, GGUF_SUFFIX
from edgerun.values import Notice

EXPORTERS = (
    "edgerun.exporters"  # entry points: functions of a checkpoint, a folder and ``progress``
)
FOLDER = "models"  # in the cache folder
HUB = "hf:"
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(/[\w.-]+\.gguf)?", re.ASCII)  # behind ``hf:``
CONFIG = "config.json"
_PART = re.compile(r"(.+)-[0-9]{5}-of-[0-9]{5}\.gguf", re.DOTALL)  # as gguf-split calls files
_FIRST = re.compile(r".+-00001-of-[0-9]{5}\.gguf", re.DOTALL)
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", f"*{GGUF_SUFFIX}")
MAX_NAME_BYTES = 200  # of 255 that file systems take; drafts have longer names
OTHER_VERSIONS = 3  # bundles of a checkpoint that are left to other versions of edgerun
Progress = Callable[[str], None]


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether something is a GGUF file, a folder of Hugging Face's with weights, or on its hub.

    A folder with one GGUF file and without config.json is that file.
    """
    text = os.fspath(path)
    if text.startswith(HUB):
        return HUB_ID.fullmatch(text.removeprefix(HUB)) is not None
    path = Path(path)
    try:
        if path.is_dir():
            is_bundle = any(os.path.lexists(path / name) for name in (MANIFEST, GENAI_CONFIG))
            return not is_bundle and _has_weights(path)
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as file:
            return file.read(len(GGUF)) == GGUF
    except (OSError, ValueError):  # nothing is there, or no path is written so
        return False


def bundle_of(checkpoint: Path, progress: Progress) -> Path:
    """The folder of a checkpoint's bundle, which is made if it is not there.

    It is called as the checkpoint is. A second name of a checkpoint gets a link.

    Args:
        checkpoint: see ``is_checkpoint``.
        progress: told when something is made, and every ten seconds how far it is.

    Raises:
        InputError: the checkpoint is broken, or a model that is not supported, or what stands
            behind ``hf:`` is no name of the hub.
        MissingDependencyError: the exporter, or what it needs, is not installed.
        StorageError: the cache folder cannot be written.
    """
    models = settings().cache_dir / FOLDER
    source, place, facts, name = _described(checkpoint)
    versions = models / _digest(place)
    folder = versions / f"{__version__}-{_digest(facts)}" / name
    if _is_bundle(folder):
        return folder
    twin = next(_bundles(folder.parent), None)
    if twin is not None:
        return _linked(folder, twin)
    export = _exporter()
    progress(Notice(f"making a bundle of {checkpoint}, once; `edgerun export` chooses its formats"))
    begin = time.monotonic()
    before = [each for each in _entries(versions) if any(True for _ in _bundles(each))]
    try:
        private_folder(models)
        if _is_bundle(folder):  # another process was faster while the exporter was imported
            return folder
        _remove(folder)  # damaged: it appears with a manifest
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make a bundle in {models}: {error.strerror}") from error
    try:
        export(source, folder, progress)
    except InputError:
        if not _is_bundle(folder):  # else another process was faster
            raise
    progress(Notice(f"made it in {time.monotonic() - begin:.0f} s, in {folder}"))
    _forget(before, folder.parent)
    return folder


@contextmanager
def with_advice(folder: Path) -> Iterator[None]:
    """Errors of a bundle that was made here say how it is made anew."""
    try:
        yield
    except BundleError as error:
        if not folder.is_relative_to(settings().cache_dir / FOLDER):
            raise
        advice = "`edgerun cache clear` deletes it, and it is made anew"
        text = str(error)
        text = text.replace(AGAIN, advice) if AGAIN in text else f"{text}; {advice}"
        raise BundleError(text) from error


def _is_bundle(folder: Path) -> bool:
    return os.path.lexists(folder / MANIFEST)


def _bundles(version: Path) -> Iterator[Path]:
    """Those that are finished: a draft may have its manifest, too."""
    for path in _entries(version):
        is_draft = path.name.startswith(".") and path.name.endswith(SUFFIX)
        if not is_draft and _is_bundle(path):
            yield path


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # it is not there, or no folder
        return []


def _linked(folder: Path, twin: Path) -> Path:
    """Another name of a bundle; where no link can be made it is what it was first called."""
    try:
        _remove(folder)
        folder.symlink_to(twin.name, target_is_directory=True)
    except OSError:
        return folder if _is_bundle(folder) else twin  # another process was faster
    return folder


def _remove(path: Path) -> None:
    """Removes a folder or a link, if it is there."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _forget(before: Iterable[Path], own: Path) -> None:
    """Removes bundles of what a checkpoint was before, and what killed exports left behind.

    Args:
        before: folders in which bundles were when this one was begun; others may be in the making.
        own: of the bundle that was made.
    """
    others = []
    for version in before:
        if version.name.rpartition("-")[0] != __version__:
            others.append(version)
        elif version != own:
            shutil.rmtree(version, ignore_errors=True)
    others.sort(key=_age)
    for version in others[OTHER_VERSIONS:]:
        shutil.rmtree(version, ignore_errors=True)
    for version in _entries(own.parent):
        remove_abandoned(version)


def _age(folder: Path) -> float:
    """Orders folders, the newest first."""
    try:
        return -folder.stat().st_mtime
    except OSError:  # another process has removed it
        return 0.0


def _exporter() -> Callable[[str, Path, Progress], None]:
    from importlib.metadata import entry_points  # takes 30 ms to import

    for point in entry_points(group=EXPORTERS):
        export: Callable[[str, Path, Progress], None] = point.load()
        return export
    raise MissingDependencyError(
        "this is a checkpoint, and the exporter, which makes bundles of them, is not installed: "
        "pip install 'edgerun[export]'"
    )


def _has_weights(folder: Path) -> bool:
    if (folder / CONFIG).is_file():
        return any(True for pattern in WEIGHTS for _ in folder.glob(pattern))
    files = [path.name for path in folder.glob(f"*{GGUF_SUFFIX}")]
    return len({_whole(name) for name in files}) == 1 and (
        len(files) == 1 or any(_FIRST.fullmatch(name) for name in files)
    )


def _whole(name: str) -> str:
    """The file name of a model of which another may have a part."""
    match = _PART.fullmatch(name)
    return f"{match[1]}{GGUF_SUFFIX}" if match else name


def _described(checkpoint: Path) -> tuple[str, str, str, str]:
    """What the exporter is told, where that is, what changes with it, and the bundle's name.

    Raises:
        InputError: it is no name of the hub.
    """
    text = checkpoint.as_posix()
    if text.startswith(HUB):
        if not is_checkpoint(text):
            raise InputError(
                f"{text!r} is no hub id: expected {HUB}owner/name or {HUB}owner/name/file.gguf"
            )
        return text, text, "", _name(text.rpartition("/")[2])
    given, real = checkpoint.absolute(), checkpoint.resolve()
    name = real.name if given.name == os.pardir else given.name
    return os.fspath(given), os.fspath(real), _facts(real, _parts(given)), _name(_whole(name))


def _name(text: str) -> str:
    """A checkpoint's name as one that every folder can have."""
    text = re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text.removesuffix(GGUF_SUFFIX))
    text = text.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
    return "model" if text in ("", os.curdir, os.pardir) else text


def _parts(checkpoint: Path) -> list[Path]:
    """The files of which a file is a part, where it is one."""
    if _PART.fullmatch(checkpoint.name) is None:
        return []
    pattern = f"*{GGUF_SUFFIX}"
    whole = _whole(checkpoint.name)
    return [each for each in checkpoint.parent.glob(pattern) if _whole(each.name) == whole]


def _facts(checkpoint: Path, parts: Iterable[Path]) -> str:
    """What is other for files that have changed."""
    files = sorted(checkpoint.iterdir() if checkpoint.is_dir() else [checkpoint, *parts])
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    return json.dumps([[name, s.st_size, s.st_mtime_ns] for name, s in stats])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
