"""Opens a bundle: manifest checked, weights memory-mapped, nothing outside its folder read."""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgerun.env import PACKS
from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph.check import check, confirm, is_lowered
from edgerun.graph.ir import Graph
from edgerun.graph.onnx_reader import read_graph
from edgerun.graph.passes import lower
from edgerun.model.foreign import GENAI_CONFIG, foreign_manifest
from edgerun.model.manifest import FORMAT, FORMAT_VERSION, FileEntry, Manifest, ModelConfig

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
MODEL = "model.onnx"
MAX_TEXT_BYTES = 256 * 2**20
MAX_DIMENSION = 2**24
# Files up to this size are hashed at every load; larger ones when asked (``verify``).
ALWAYS_HASHED_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle.

    Attributes:
        path: its folder.
        manifest: what the exporter recorded.
        graph: the lowered graph; its constants are views of mapped files.
    """

    path: Path
    manifest: Manifest
    graph: Graph

    @property
    def config(self) -> ModelConfig:
        """The model's dimensions and special tokens."""
        return self.manifest.model

    @property
    def digest(self) -> str:
        """Digest over the digests of all files: two bundles with the same one are the same."""
        entries = sorted((name, entry.sha256) for name, entry in self.manifest.files.items())
        return hashlib.sha256(repr(entries).encode()).hexdigest()

    def has(self, name: str) -> bool:
        """Whether the manifest lists a file of this name."""
        return name in self.manifest.files

    def read_text(self, name: str) -> str:
        """Reads a text file of the bundle, checked against its digest.

        Raises:
            BundleError: it is not listed, too large, altered, or no UTF-8.
        """
        if not self.has(name):
            raise BundleError(f"{self.path} has no file '{name}' in its manifest")
        data = _checked_file(self.path, name, self.manifest.files[name], always=True)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BundleError(f"{self.path / name} is not UTF-8 text: {error}") from error


def open_bundle(path: Path | str, *, verify: bool = False) -> Bundle:
    """Opens a bundle folder.

    Args:
        path: of the folder; one that another exporter wrote for onnxruntime-genai will do.
        verify: hash the weight files too, which reads them completely. Sizes, and the digests
            of all files up to 32 MiB, are checked in any case.

    Raises:
        BundleError: something is missing, altered, truncated or reaches outside the folder.
        UnsupportedError: the bundle is of a newer format.
    """
    folder = Path(path)
    if not (folder / MANIFEST).exists() and (folder / GENAI_CONFIG).is_file():
        logger.warning("%s has no %s, so its files cannot be checked for damage", folder, MANIFEST)
        manifest, model = foreign_manifest(folder)
        _check_model(folder / GENAI_CONFIG, manifest.model)
        graph = _graph(folder / model, folder / GENAI_CONFIG, manifest.model)
        return Bundle(folder, manifest, graph)
    manifest = read_manifest(folder)
    if MODEL not in manifest.files:
        raise BundleError(f"the manifest of {folder} lists no {MODEL}")
    hashed: set[tuple[int, int]] = set()
    for name, entry in manifest.files.items():
        _checked_file(folder, name, entry, always=verify, hashed=hashed)
    graph = _graph(folder / MODEL, folder / MANIFEST, manifest.model, frozenset(hashed))
    return Bundle(folder, manifest, graph)


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks ``manifest.json``.

    Raises:
        BundleError: the folder is no bundle or the manifest is broken.
        UnsupportedError: the bundle is of a newer format.
    """
    if not folder.exists():
        raise BundleError(f"there is no bundle at {folder}: give the folder that an export wrote")
    if not (folder / MANIFEST).is_file():
        raise BundleError(
            f"{folder} is no edgerun bundle: it has no {MANIFEST}; "
            "make one with 'edgerun export <checkpoint> -o <folder>'"
        )
    data = _read(folder / MANIFEST)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(
            f"{folder / MANIFEST} is damaged: {error}; copy or export the model again"
        ) from error
    if manifest.format != FORMAT:
        raise BundleError(f"{folder / MANIFEST} says format '{manifest.format}', not '{FORMAT}'")
    if manifest.format_version != FORMAT_VERSION:
        raise UnsupportedError(
            f"{folder} has bundle format {manifest.format_version}, this version reads "
            f"{FORMAT_VERSION}: export the model again or update edgerun"
        )
    if manifest.pack not in PACKS:
        raise BundleError(
            f"{folder / MANIFEST} says pack '{manifest.pack}'; expected one of {', '.join(PACKS)}"
        )
    _check_model(folder / MANIFEST, manifest.model)
    return manifest


def _graph(
    path: Path,
    description: Path,
    model: ModelConfig,
    hashed: frozenset[tuple[int, int]] = frozenset(),
) -> Graph:
    """Reads, lowers and checks a model file, and compares it with what a description states.

    Graphs with ops of their own are not checked: no back-end runs them but one that reads the
    file itself. What a hostile file can get wrong has no end (names that are no text, attributes
    of another type), so anything that reading trips over means that the file is broken.
    """
    try:
        graph = lower(read_graph(path, hashed))
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise BundleError(f"the graph in {path} is inconsistent: {error!r}") from error
    if is_lowered(graph):
        confirm(check(graph), msgspec.structs.asdict(model), str(description))
    return graph


def _check_model(path: Path, model: ModelConfig) -> None:
    names = ("context_length", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size")
    for name in names:
        if not 0 < getattr(model, name) <= MAX_DIMENSION:
            raise BundleError(f"{path} says {name} {getattr(model, name)}: it must be positive")
    ids = (*model.eos_token_ids, model.bos_token_id or 0, model.pad_token_id or 0)
    if not all(0 <= token < model.vocab_size for token in ids):
        raise BundleError(
            f"{path} names special tokens {ids} outside the vocabulary of {model.vocab_size}"
        )


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise BundleError(f"{path} is larger than {MAX_TEXT_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from error


def _checked_file(
    folder: Path,
    name: str,
    entry: FileEntry,
    *,
    always: bool,
    hashed: set[tuple[int, int]] | None = None,
) -> bytes:
    """Checks a file's place, kind, size and, unless it is large, digest; returns its bytes.

    A large file is not read and returns nothing. One with several names is always read, since it
    may be somebody else's; installers link files so. Device and inode of files whose digest was
    right are added to ``hashed``.
    """
    if "/" in name or "\\" in name or name in ("", ".", "..", MANIFEST):
        raise BundleError(f"the manifest of {folder} lists '{name}', which is no plain file name")
    path = folder / name
    if path.is_symlink() or not path.is_file():
        raise BundleError(
            f"{path} is missing or not a plain file, but the manifest lists it; "
            "copy or export the model again"
        )
    status = path.stat()
    size = status.st_size
    if size != entry.size:
        raise BundleError(
            f"{path} has {size} bytes and the manifest says {entry.size}: the file is truncated "
            "or altered; copy or export the model again"
        )
    if size > ALWAYS_HASHED_BYTES and not always and status.st_nlink == 1:
        return b""
    digest, data = hashlib.sha256(), bytearray()
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        while piece := file.read(2**20):
            digest.update(piece)
            if size <= MAX_TEXT_BYTES:
                data += piece
    if digest.hexdigest() != entry.sha256:
        raise BundleError(
            f"{path} does not match the digest in the manifest: it is damaged or altered; "
            "copy or export the model again"
        )
    if hashed is not None:
        hashed.add((status.st_dev, status.st_ino))
    return bytes(data)
