"""GGUF files that are parts of one model, as llama.cpp's ``gguf-split`` writes them.

They are called ``NAME-00001-of-00003.gguf`` and so on. The first has the metadata, each says which
it is, and tensors lie in one part each; the first may have none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.gguf_header import GgufHeader, GgufTensor

COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"
_MOST = 9999
_PART = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)


def name_of_part(name: str, number: int) -> str | None:
    """The file name of a part, from 1 on, of the model that another part is of; None if of none."""
    match = _PART.fullmatch(name)
    return match and f"{match['stem']}-{number:05}-of-{match['count']}.gguf"


def other_names(name: str) -> list[str]:
    """The file names of the parts behind the first one, which this is; none if it is not."""
    match = _PART.fullmatch(name)
    if match is None or name_of_part(name, 1) != name:
        return []
    return [str(name_of_part(name, 1 + part)) for part in range(1, int(match["count"]))]


def first_of_all(files: Sequence[Path]) -> Path | None:
    """The first part, where all of some files are parts of one model; None where they are not."""
    firsts = {name_of_part(path.name, 1) for path in files}
    name = firsts.pop() if len(firsts) == 1 else None
    return next((path for path in files if path.name == name), None)


def other_parts(path: Path, metadata: Mapping[str, Any]) -> list[Path]:
    """Where the parts behind the first one are; none of a model in one file.

    Raises:
        CheckpointError: the file is not the first part, or is not called as one.
    """
    count = metadata.get(COUNT, 1)
    if type(count) is not int or count <= 1:
        return []
    if count > _MOST:
        raise CheckpointError(f"'{path.name}' is one of {count} parts; expected {_MOST} at most")
    number = metadata.get(NUMBER, 0)
    if number != 0:
        first = name_of_part(path.name, 1)
        advice = f"give the first, '{first}'" if first else "give the first"
        raise CheckpointError(f"'{path.name}' is not the first of {count} parts; {advice}")
    if path.name != name_of_part(path.name, 1) or not path.name.endswith(f"-of-{count:05}.gguf"):
        raise CheckpointError(
            f"'{path.name}' is one of {count} parts, and the others cannot be known by its name; "
            f"expected one that ends with '-00001-of-{count:05}.gguf'"
        )
    return [path.with_name(name) for name in other_names(path.name)]


def joined(headers: Sequence[GgufHeader], names: Sequence[str]) -> GgufHeader:
    """The header of a model of several parts: the metadata of the first, the tensors of all.

    Args:
        headers: of the parts, in their order.
        names: of their files.

    Raises:
        CheckpointError: one is another part than it is called, or of another model.
    """
    first, count = headers[0].metadata, len(headers)
    tensors: dict[str, GgufTensor] = {}
    for number, (header, name) in enumerate(zip(headers, names, strict=True)):
        said = header.metadata.get(NUMBER, number), header.metadata.get(COUNT, 1)
        if count > 1 and said != (number, count):
            raise CheckpointError(
                f"'{name}' says that it is part {said[0] + 1} of {said[1]}; expected part "
                f"{number + 1} of {count}, so files of several models are mixed up"
            )
        twice = next((each for each in header.tensors if each in tensors), None)
        if twice is not None:
            raise CheckpointError(f"'{name}' has tensor '{twice}', which another part has, too")
        tensors |= header.tensors
    total = first.get(TENSORS)
    if count > 1 and type(total) is int and total != len(tensors):
        raise CheckpointError(
            f"'{names[0]}' says that its {count} parts have {total} tensors, and they have "
            f"{len(tensors)}; download them again"
        )
    return GgufHeader(first, tensors)
