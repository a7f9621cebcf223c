"""Data that tensors keep in other files: which files those may be.

A hostile graph must not make anybody read another file than the model's own. So every tensor is
looked at, also where only other runtimes would read it: in attributes, sparse initializers,
subgraphs, functions and training graphs.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import BundleError
from edgerun.files.plain import NotPlainError, is_plain_name, open_plain
from edgerun.graph.mapped_file import MappedFile

EXTERNAL = 1  # TensorProto.DataLocation
MOST_READERS = 2  # of a byte: an embedding and a head may be the same; copies are made of each
FREE_BYTES = 1 << 20  # of a file that tensors may read in any case


class OpenFile:
    """A file that stays open as long as somebody holds this, so that no other takes its place.

    Attributes:
        descriptor: for reading.
    """

    def __init__(self, descriptor: int) -> None:
        """Takes over a descriptor."""
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)


class ExternalFiles:
    """Files of one folder, mapped once each."""

    def __init__(self, folder: Path, listed: Mapping[str, OpenFile] | None) -> None:
        """Allows the files of a folder.

        Args:
            folder: of the model.
            listed: the files that a manifest vouches for, by name, as they were checked. Others
                are refused. Without a manifest (None) any file of the folder will do that has no
                other name: one with several may be somebody else's.
        """
        self._folder = folder
        self._listed = listed
        self._maps: dict[str, NDArray[np.uint8]] = {}
        self._read: dict[str, int] = {}  # bytes that tensors read of each

    def view(self, location: str, offset: int, length: int, tensor: str) -> NDArray[np.uint8]:
        """Some bytes of a file, mapped; uint8 ``[length]``.

        Raises:
            BundleError: the file is not one of the model's, or too short, or tensors read it over
                and over.
        """
        data = self._maps.get(location)
        if data is None:
            data = self._maps[location] = self._map(location, tensor)
        if offset < 0 or length < 0 or offset + length > len(data):
            raise BundleError(
                f"tensor '{tensor}' reads bytes {offset} to {offset + length} of {location}, "
                f"which has {len(data)}: the file is truncated or the model altered"
            )
        self._read[location] = nbytes = self._read.get(location, 0) + length
        if nbytes > MOST_READERS * len(data) + FREE_BYTES:
            raise BundleError(
                f"the tensors up to '{tensor}' read {nbytes} bytes of {location}, which has "
                f"{len(data)}; expected at most {MOST_READERS} that read the same: the model is "
                "altered"
            )
        return data[offset : offset + length]

    def _map(self, location: str, tensor: str) -> NDArray[np.uint8]:
        if not is_plain_name(location):
            raise BundleError(
                f"tensor '{tensor}' wants data from '{location}': only a file in the model's own "
                "folder is allowed"
            )
        file = self._find(location, tensor)
        if os.fstat(file.descriptor).st_size == 0:
            return np.zeros(0, np.uint8)
        return np.frombuffer(MappedFile(file.descriptor), np.uint8)

    def _find(self, location: str, tensor: str) -> OpenFile:
        if self._listed is None:
            return _open_alone(self._folder / location, tensor)
        if location not in self._listed:
            raise BundleError(
                f"tensor '{tensor}' wants data from '{location}', which the manifest does not "
                "list, so nothing vouches for it: copy or export the model again"
            )
        return self._listed[location]


def _open_alone(path: Path, tensor: str) -> OpenFile:
    """Opens a plain file that has no other name."""
    try:
        file = OpenFile(open_plain(path))
    except NotPlainError as error:
        raise BundleError(
            f"{path}, the data of tensor '{tensor}', must be a plain file: {error.strerror}"
        ) from error
    except OSError as error:
        raise BundleError(
            f"cannot open {path}, the data of tensor '{tensor}': {error.strerror}"
        ) from error
    names = os.fstat(file.descriptor).st_nlink
    if names > 1:
        raise BundleError(
            f"{path} must be a plain file with a single name: it has {names} (hard links), so it "
            "may be somebody else's; copy it"
        )
    return file


def check_other_tensors(model: Any, files: ExternalFiles) -> None:
    """Checks where all tensors but those of the graph's initializers and nodes keep their data.

    Raises:
        BundleError: one of them reads outside of the model's files.
    """
    _check(_other_tensors(model), files)


def check_node_tensors(node: Any, files: ExternalFiles) -> None:
    """Checks where the tensors in the attributes of a node keep their data.

    Raises:
        BundleError: one of them reads outside of the model's files.
    """
    _check(_node_tensors([node]), files)


def read_external(tensor: Any, files: ExternalFiles, length: int | None) -> NDArray[np.uint8]:
    """The bytes of a tensor in another file; ``length`` is what its shape needs, if that is known.

    Raises:
        BundleError: the range is broken, of another length, or outside of the model's files.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    try:
        offset = int(entries.get("offset", "0"))
        stated = int(entries.get("length", str(length or 0)))
    except ValueError as error:
        raise BundleError(f"tensor '{tensor.name}' has a broken data range: {error}") from error
    if length is not None and stated != length:
        raise BundleError(
            f"tensor '{tensor.name}' needs {length} bytes, its data range has {stated}"
        )
    return files.view(entries.get("location", ""), offset, stated, tensor.name)


def _check(tensors: Iterator[Any], files: ExternalFiles) -> None:
    for tensor in tensors:
        if tensor.data_location == EXTERNAL:
            read_external(tensor, files, None)


def _other_tensors(model: Any) -> Iterator[Any]:
    """The tensors of a model that neither initializers nor nodes of its graph have."""
    yield from _sparse_tensors(model.graph.sparse_initializer)
    for function in model.functions:
        yield from _node_tensors(function.node)
        yield from _attribute_tensors(function.attribute_proto)  # what its own are unless given
    for training in model.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)


def _graph_tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    yield from _sparse_tensors(graph.sparse_initializer)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield from _attribute_tensors(node.attribute)


def _attribute_tensors(attributes: Any) -> Iterator[Any]:
    for attribute in attributes:
        # Whatever its type says: another reader may look at the field.
        if attribute.HasField("t"):
            yield attribute.t
        if attribute.HasField("g"):
            yield from _graph_tensors(attribute.g)
        if attribute.HasField("sparse_tensor"):
            yield from _sparse_tensors([attribute.sparse_tensor])
        yield from attribute.tensors
        yield from _sparse_tensors(attribute.sparse_tensors)
        for graph in attribute.graphs:
            yield from _graph_tensors(graph)


def _sparse_tensors(tensors: Any) -> Iterator[Any]:
    for tensor in tensors:
        yield tensor.values
        yield tensor.indices
