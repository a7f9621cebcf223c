"""ONNX's messages, without what else the onnx package imports, and how many a file may hold."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from edgerun.errors import BundleError

MODULE = "onnx_ml_pb2"
# Of an encoded model. Ours have 26 bytes a part (node, attribute, tensor, note and so on; or two
# strings of a list, as names of inputs are); the largest, with 900,000 nodes, would have 6 million.
FREE_BYTES = 1 << 18  # in which parts may be of any size: so many are soon made
LEAST_BYTES = 8
MAX_PARTS = 1 << 23
MAX_INTEGERS = 1 << 24
STRINGS_A_PART = 2  # one takes a third of the memory
DEEPEST = 100  # as protobuf has it
_VARINT, _LENGTH, _SIZES = 0, 2, {1: 8, 5: 4}  # wire types, and bytes of fixed ones
_LONG_BYTES = 1000  # what is longer is data of a tensor, not a name
_NODE_DEPTH, _SHORT_BYTES, _MOST_COUNTED = 2, 64, 1 << 12
_MOST_UNCHECKED = 1 << 12  # strings


@cache
def onnx_messages() -> Any:
    """The module ``onnx.onnx_ml_pb2``, which has ``ModelProto`` and its kin.

    The package's checks and helpers would take 60 ms of every start and 10 MB, so the module is
    loaded by itself if the package has not been. Protobuf gives both the same classes.
    """
    package = None if "onnx" in sys.modules else find_spec("onnx")
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder) / f"{MODULE}.py"
        if path.is_file():
            loader = SourceFileLoader(f"{__name__}.{MODULE}", str(path))
            spec = spec_from_loader(loader.name, loader)
            assert spec is not None
            module = module_from_spec(spec)
            loader.exec_module(module)
            return module
    return importlib.import_module(f"onnx.{MODULE}")


class _Kind:
    """What fields of a kind of message are, by number.

    Attributes:
        parts: kinds of those that are messages.
        integers: lists of whole numbers, which several bytes of memory stand for each.
        strings: lists of strings.
        counted: by content of a short message of the kind, what it counts for.
    """

    def __init__(self) -> None:
        self.parts: dict[int, _Kind] = {}
        self.integers: set[int] = set()
        self.strings: set[int] = set()
        self.counted: dict[bytes, tuple[int, int, int]] = {}


def _kinds() -> _Kind:
    """The kind of a model, with those that are in it."""
    kinds: dict[str, _Kind] = {}

    def kind_of(descriptor: Any) -> _Kind:
        kind = kinds.get(descriptor.full_name)
        if kind is None:
            kind = kinds[descriptor.full_name] = _Kind()
            floats = (descriptor.fields[0].CPPTYPE_FLOAT, descriptor.fields[0].CPPTYPE_DOUBLE)
            for field in descriptor.fields:
                if field.message_type is not None:
                    kind.parts[field.number] = kind_of(field.message_type)
                elif _is_list(field) and field.cpp_type not in floats:
                    is_text = field.cpp_type == field.CPPTYPE_STRING
                    (kind.strings if is_text else kind.integers).add(field.number)
        return kind

    return kind_of(onnx_messages().ModelProto.DESCRIPTOR)


def _is_list(field: Any) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)  # as protobuf had it before 6.31


def check_parts(data: bytes) -> None:
    """Checks that an encoded model does not consist of a great many parts, before they are made.

    Two bytes are enough for an empty node, which takes 340 in memory, or an empty name of one,
    which takes 60; one is for an integer.
    https://protobuf.dev/programming-guides/encoding says how they are written.

    Raises:
        BundleError: there are too many for what the file says of them, or it is damaged.
    """
    if len(data) <= FREE_BYTES:
        return
    try:
        _Counter(data).count(0, len(data), _kinds(), 0)
    except IndexError:
        raise BundleError("the model file ends in the middle of a number") from None


class _Counter:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._parts = self._integers = self._strings = self._skipped = 0

    def count(self, at: int, end: int, kind: _Kind, depth: int) -> None:
        """Counts what is in a message that lies at some bytes."""
        data, parts, integers = self._data, kind.parts, kind.integers
        while at < end:
            tag, at = data[at], at + 1
            if tag > 0x7F:
                tag, at = self._number(at - 1)
            if tag & 7 != _LENGTH:
                begin, at = at, self._after(tag & 7, at)
                if tag >> 3 in integers:  # those of a list may lie there one by one
                    self._count_integers(at - begin, at)
                continue
            length, at = data[at], at + 1
            if length > 0x7F:
                length, at = self._number(at - 1)
            begin, at = at, at + length
            if at > end:
                raise BundleError("the model file ends in the middle of a part")
            part = parts.get(tag >> 3)
            if part is not None:
                self._enter(begin, at, part, depth + 1)
            else:
                self._count_bytes(tag >> 3, length, at, kind)

    def _after(self, wire: int, at: int) -> int:
        """Where a number ends."""
        if wire == _VARINT:
            while self._data[at] > 0x7F:
                at += 1
            return at + 1
        if wire not in _SIZES:
            raise BundleError(f"the model file has a field of the unknown kind {wire}")
        return at + _SIZES[wire]

    def _enter(self, begin: int, end: int, kind: _Kind, depth: int) -> None:
        """Counts a message and what is in it."""
        self._parts += 1
        if begin < end and (kind.parts or kind.integers or kind.strings):
            self._count_content(begin, end, kind, depth)
        self._check(end)

    def _count_bytes(self, number: int, length: int, end: int, kind: _Kind) -> None:
        """Counts a field that is no message."""
        if number in kind.integers:
            self._count_integers(length, end)
            return
        if length > _LONG_BYTES:
            self._skipped += length
        if number in kind.strings:
            self._strings += 1
            if self._strings % _MOST_UNCHECKED == 0:
                self._check(end)

    def _count_integers(self, nbytes: int, end: int) -> None:
        self._integers += nbytes
        if self._integers > MAX_INTEGERS:
            self._check(end)

    def _check(self, end: int) -> None:
        """Refuses what was counted in the bytes so far, if it is too much."""
        plain, parts = end - self._skipped, self._parts + self._strings // STRINGS_A_PART
        if parts > min(MAX_PARTS, (FREE_BYTES + plain) // LEAST_BYTES):
            raise BundleError(
                f"the model file has {parts} parts in its first {plain} bytes, data of "
                f"tensors left out; expected at most {MAX_PARTS}, and one in {LEAST_BYTES} bytes"
            )
        if self._integers > MAX_INTEGERS:
            raise BundleError(
                f"the model file has more than {MAX_INTEGERS} bytes of integers in lists; expected "
                "the data of tensors as raw bytes"
            )

    def _count_content(self, begin: int, end: int, kind: _Kind, depth: int) -> None:
        # Most attributes are the same as those of many other nodes.
        is_short = depth > _NODE_DEPTH and end - begin <= _SHORT_BYTES
        content = self._data[begin:end] if is_short else b""
        parts, integers, strings = kind.counted.get(content, (0, 0, 0))
        if parts:
            self._parts += parts - 1
            self._integers += integers
            self._strings += strings
            return
        if depth > DEEPEST:
            raise BundleError(f"the model file has parts in parts, {DEEPEST} deep")
        before, integers, strings = self._parts - 1, self._integers, self._strings
        self.count(begin, end, kind, depth)
        if content and len(kind.counted) < _MOST_COUNTED:
            kind.counted[content] = (
                self._parts - before,
                self._integers - integers,
                self._strings - strings,
            )

    def _number(self, at: int) -> tuple[int, int]:
        """A number of seven bits a byte, and where it ends."""
        number = 0
        for shift in range(0, 70, 7):
            byte, at = self._data[at], at + 1
            number |= (byte & 0x7F) << shift
            if byte <= 0x7F:
                return number, at
        raise BundleError("the model file has a number of more than ten bytes")
