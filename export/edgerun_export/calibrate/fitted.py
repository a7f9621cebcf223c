"""Fitted projections on disk, a file a layer, so that an export that was stopped can go on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgerun.errors import StorageError
from edgerun.formats.base import PackedWeight

_KEY, _ABOUT = "key.json", "about"
_PARTS = ("codes", "scales", "zeros", "offsets")  # of a packed weight, as its class has them
# Counts changes of these files, and of how layers are fitted: those of before are not gone on with.
FORM = 3


@dataclass(slots=True)
class Gaps:
    """What a text does not tell of projections that read the same, by the path of the first.

    Attributes:
        starved: hardly any token came to them.
        silent: how many of their inputs were zero in all of it, where some were.
        singular: their inputs hang together so that more was added to the diagonal.
    """

    starved: list[str] = field(default_factory=list)
    silent: dict[str, int] = field(default_factory=dict)
    singular: list[str] = field(default_factory=list)

    def add(self, other: Gaps) -> None:
        """Adds those of another layer."""
        self.starved += other.starved
        self.silent |= other.silent
        self.singular += other.singular


class FittedLayers:
    """What calibration made, by the names of tensors.

    Args:
        folder: where the files lie; made if need be, and files of something else removed.
        key: what the work depends on, but for the weights.

    Attributes:
        folder: where the files lie.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        self.folder = folder
        self._text = json.dumps({"form": FORM, **key}, sort_keys=True)
        self._layers: dict[str, int] = {}
        self._latest: tuple[int, dict[str, PackedWeight]] | None = None
        self.resumed = 0
        try:
            self._prepare()
        except OSError as error:
            raise StorageError(f"cannot write '{folder}': {error.strerror}") from error

    def _prepare(self) -> None:
        key = self.folder / _KEY
        self.folder.mkdir(parents=True, exist_ok=True)
        if not key.is_file() or key.read_bytes() != self._text.encode():
            for file in self.folder.glob("layer-*"):  # the folder stays: it may be locked
                file.unlink()
        key.write_bytes(self._text.encode())

    @property
    def is_empty(self) -> bool:
        """Whether no projection was fitted."""
        return not self._layers

    def load(self, layer: int, digest: str) -> tuple[dict[str, PackedWeight], Gaps] | None:
        """What was made of a layer, if it is there and was made of the same weights."""
        stored = self._read(layer, digest)
        if stored is not None:
            self.resumed += 1
            self._remember(layer, stored[0])
        return stored

    def save(
        self, layer: int, digest: str, weights: Mapping[str, PackedWeight], gaps: Gaps
    ) -> None:
        """Stores what was made of a layer whose weights have a digest.

        Raises:
            StorageError: it cannot be written.
        """
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        about: dict[str, Any] = {"digest": digest, "gaps": asdict(gaps), "tensors": {}}
        for name, packed in weights.items():
            about["tensors"][name] = [packed.format, *packed.shape, packed.block]
            for part in _PARTS:
                values = getattr(packed, part)
                if values is not None:
                    arrays[f"{name}.{part}"] = values
        arrays[_ABOUT] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        draft = self._file(layer).with_suffix(".part")
        try:
            with draft.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
            os.replace(draft, self._file(layer))
        except OSError as error:
            raise StorageError(f"cannot write '{draft}': {error.strerror}") from error
        self._remember(layer, dict(weights))

    def packed(self, name: str) -> PackedWeight | None:
        """A fitted projection; None for one that is made of its weights alone."""
        layer = self._layers.get(name)
        if layer is None:
            return None
        if self._latest is None or self._latest[0] != layer:
            stored = self._read(layer, None)
            assert stored is not None, "it was written or read before"
            self._latest = layer, stored[0]
        return self._latest[1][name]

    def remove(self) -> None:
        """Removes the files, when the bundle is complete."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remember(self, layer: int, weights: dict[str, PackedWeight]) -> None:
        self._layers |= dict.fromkeys(weights, layer)
        self._latest = layer, weights

    def _file(self, layer: int) -> Path:
        return self.folder / f"layer-{layer:04d}.npz"

    def _read(self, layer: int, digest: str | None) -> tuple[dict[str, PackedWeight], Gaps] | None:
        """None if there is no such file, if it is broken, or made of other weights."""
        try:
            # NumPy leaves a file open that is no archive, unless it is ours.
            with (
                self._file(layer).open("rb") as opened,
                np.load(opened, allow_pickle=False) as file,
            ):
                about = json.loads(file[_ABOUT].tobytes())
                if digest is not None and about["digest"] != digest:
                    return None
                weights = {
                    name: PackedWeight(
                        kind, (n, k), block, *(file.get(f"{name}.{part}") for part in _PARTS)
                    )
                    for name, (kind, n, k, block) in about["tensors"].items()
                }
                return weights, Gaps(**about["gaps"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            return None


def digest(arrays: Iterable[tuple[str, np.ndarray[Any, Any]]]) -> str:
    """SHA-256 of arrays with their names, in their order."""
    total = hashlib.sha256()
    for name, values in arrays:
        total.update(name.encode())
        total.update(np.ascontiguousarray(values).data)
    return total.hexdigest()
