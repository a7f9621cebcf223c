"""Opens a bundle: manifest checked, weights memory-mapped, nothing outside its folder read."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from edgerun.collector import collector_paused
from edgerun.env import PACKS
from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph.external_data import OpenFile
from edgerun.graph.geometry import confirm, geometry
from edgerun.graph.ir import Graph
from edgerun.graph.lower import lower
from edgerun.graph.mapped_file import MappedFile, files_of
from edgerun.graph.onnx_reader import read_graph
from edgerun.model.bundle_files import (
    GENAI_CONFIG,
    MANIFEST,
    MODEL,
    BundleFiles,
    read_unlisted,
)
from edgerun.model.foreign import read_foreign
from edgerun.model.manifest import FORMAT, FORMAT_VERSION, Manifest, ModelConfig
from edgerun.model.refusals import why_no_model
from edgerun.model.verification import digest_of

logger = logging.getLogger(__name__)

MAX_DIMENSION = 2**24
SIZES = {  # by the smallest that they can be; 0 says that layers differ
    1: ("context_length", "num_layers", "vocab_size"),
    0: ("num_heads", "num_kv_heads", "head_dim"),
}


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle.

    Attributes:
        path: its folder.
        manifest: what the exporter recorded.
        graph: the lowered graph; its constants are views of mapped files.
        files: of the folder.
        is_foreign: it is another exporter's, and no manifest has a digest of its weights.
        weight_files: of a foreign one, the files that its weights lie in.
    """

    path: Path
    manifest: Manifest
    graph: Graph
    files: BundleFiles
    is_foreign: bool = False
    weight_files: tuple[MappedFile, ...] = ()

    @property
    def config(self) -> ModelConfig:
        """The model's dimensions and special tokens."""
        return self.manifest.model

    @property
    def digest(self) -> str:
        """Digest over the digests of all files: two bundles with the same one are the same.

        The weights of a foreign one are read for it, once in each state of their files.

        Raises:
            BundleError: they were changed meanwhile.
        """
        entries = sorted((name, entry.sha256) for name, entry in self.manifest.files.items())
        weights = [digest_of(self.path, file.descriptor) for file in self.weight_files]
        return hashlib.sha256(repr([*entries, *weights]).encode()).hexdigest()

    def has(self, name: str) -> bool:
        """Whether the manifest lists a file of this name."""
        return name in self.manifest.files

    def read_text(self, name: str) -> str:
        """Reads a text file of the bundle, checked against its digest.

        Raises:
            BundleError: it is not listed, too large, altered, or no UTF-8.
        """
        try:
            return self.files.read(name).decode("utf-8")
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
    if not os.path.lexists(folder / MANIFEST) and os.path.lexists(folder / GENAI_CONFIG):
        return _open_foreign(folder)
    manifest = read_manifest(folder)
    files = BundleFiles(folder, manifest.files)
    files.check(verify=verify, later=MODEL)
    graph, _ = _read_model(
        folder / MODEL, files.read(MODEL), files.opened, folder / MANIFEST, manifest.model
    )
    files.release()
    return Bundle(folder, manifest, graph, files)


def _open_foreign(folder: Path) -> Bundle:
    logger.warning("%s has no %s, so its files cannot be checked for damage", folder, MANIFEST)
    foreign = read_foreign(folder)
    manifest, description = foreign.manifest, folder / GENAI_CONFIG
    _check_model(description, manifest.model)
    graph, weights = _read_model(
        folder / foreign.name, foreign.data, None, description, manifest.model
    )
    files = BundleFiles(folder, manifest.files)
    return Bundle(folder, manifest, graph, files, is_foreign=True, weight_files=tuple(weights))


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks ``manifest.json``.

    Raises:
        BundleError: the folder is no bundle or the manifest is broken.
        UnsupportedError: the bundle is of a newer format.
    """
    if not os.path.lexists(folder / MANIFEST):
        raise BundleError(why_no_model(folder))
    data = read_unlisted(folder / MANIFEST)
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


def _read_model(
    path: Path,
    data: bytes,
    listed: Mapping[str, OpenFile] | None,
    description: Path,
    model: ModelConfig,
) -> tuple[Graph, list[MappedFile]]:
    """Reads and lowers a model file, and compares it with what a description states.

    What a hostile file can get wrong has no end (names that are no text, attributes of another
    type), so anything that reading trips over means that the file is broken.

    Returns:
        the lowered graph, and the files that the model's weights lie in if none are listed.
    """
    try:
        with collector_paused():  # all of it stays
            as_read = read_graph(path, data, listed)
            graph = _lowered(as_read)
            weights = files_of(as_read.constants.values()) if listed is None else []
            del as_read  # before the collector looks at all of its nodes
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise BundleError(f"the graph in {path} is inconsistent: {error!r}") from error
    if not graph.refusal:
        confirm(geometry(graph), msgspec.structs.asdict(model), str(description))
    return graph, weights


def _lowered(graph: Graph) -> Graph:
    """The lowered graph, or the one given with the reason why it cannot be lowered.

    A back-end that reads the file itself may run that; the others refuse it with this sentence.
    """
    try:
        return lower(graph)
    except UnsupportedError as error:
        return replace(graph, refusal=str(error))


def _check_model(path: Path, model: ModelConfig) -> None:
    for lowest, names in SIZES.items():
        for name in names:
            size = getattr(model, name)
            if not lowest <= size <= MAX_DIMENSION:
                raise BundleError(
                    f"{path} says {name} {size}; expected {lowest} to {MAX_DIMENSION}"
                )
    ids = (*model.eos_token_ids, model.bos_token_id or 0, model.pad_token_id or 0)
    if not all(0 <= token < model.vocab_size for token in ids):
        raise BundleError(
            f"{path} names special tokens {ids} outside the vocabulary of {model.vocab_size}"
        )
