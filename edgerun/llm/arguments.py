"""What callers pass to the Python API: a wrong type gets one sentence, never a guess."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from edgerun.errors import InputError, PromptError
from edgerun.llm.options import LoadOptions
from edgerun.values import as_int, shown, suggestion

if TYPE_CHECKING:
    from edgerun.engine.chooser.keywords import SamplingKeywords
    from edgerun.llm.options import LoadKeywords

T = TypeVar("T")
NO_LISTS = (str, bytes, bytearray, memoryview)  # sequences, but no list of anything


def check_text(name: str, value: object) -> str:
    """Returns a text.

    Raises:
        PromptError: it is none.
    """
    if not isinstance(value, str):
        raise PromptError(f"{name} is {shown(value)}; expected a text (str)")
    return value


def check_prompt(value: object, name: str = "the prompt") -> str | list[int]:
    """Returns a prompt: a text, or token ids.

    Raises:
        PromptError: it is neither, or empty.
    """
    prompt = value if isinstance(value, str) else check_ids(value, name, "a text or ")
    if not prompt:
        raise PromptError(f"{name} is empty: pass a text or token ids")
    return prompt


def check_ids(value: object, name: str = "the prompt", otherwise: str = "") -> list[int]:
    """Returns token ids, given as a sequence or NumPy array of whole numbers.

    Args:
        value: what was passed.
        name: what it is called.
        otherwise: what else was expected, for the message.

    Raises:
        PromptError: it is something else.
    """
    items = value.tolist() if isinstance(value, np.ndarray | array) else value
    if not isinstance(items, Sequence) or isinstance(items, NO_LISTS):
        raise PromptError(f"{name} is {shown(value)}; expected {otherwise}a list of token ids")
    return [_id(item, index, name) for index, item in enumerate(items)]


def check_scored(value: object, context: int) -> list[int]:
    """Returns token ids of a text whose logits are wanted.

    Raises:
        PromptError: they are none, no ids, or more than the context.
    """
    ids = check_ids(value, "ids")
    if not 0 < len(ids) <= context:
        raise PromptError(
            f"{len(ids)} tokens; expected 1 to {context}, the context",
            tokens=len(ids),
            context=context,
        )
    return ids


def check_prompts(value: object) -> list[str | list[int]]:
    """Returns several prompts.

    Raises:
        PromptError: they are no list, or one of them is no prompt.
    """
    return [
        check_prompt(prompt, f"prompt {index}")
        for index, prompt in enumerate(_items("prompts", value, "a list of prompts"))
    ]


def check_results(value: object) -> list[str]:
    """Returns texts that functions returned.

    Raises:
        PromptError: they are no list of texts.
    """
    results = _items("results", value, "a list of texts")
    return [check_text(f"result {index}", each) for index, each in enumerate(results)]


def check_texts(value: object) -> Iterable[object]:
    """Returns several texts, which may come from an iterator.

    Raises:
        PromptError: they are no list and no iterator.
    """
    return _items("texts", value, "a list of texts")


def check_conversation(value: object) -> Sequence[Mapping[str, Any]]:
    """Returns messages; what each of them must hold is checked when they are rendered.

    Raises:
        PromptError: they are no list.
    """
    if not isinstance(value, list | tuple):
        raise PromptError(
            f"messages is {shown(value)}; expected a list such as "
            '[{"role": "user", "content": "Hello"}]'
        )
    return value


def check_conversations(value: object) -> list[Sequence[Mapping[str, Any]]]:
    """Returns several conversations.

    Raises:
        PromptError: they are no list, or one of them is no list of messages.
    """
    return [
        check_conversation(messages)
        for messages in _items("conversations", value, "a list of conversations")
    ]


def check_path(value: object) -> Path:
    """Returns a path.

    Raises:
        InputError: it is none, or holds a null character.
    """
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes):
        raise InputError(f"the path is {shown(value)}; expected a text or a pathlib.Path")
    path = Path(value)
    if "\0" in str(path):
        raise InputError(f"the path is {shown(value)}, which holds a null character")
    return path


def load_options(given: LoadKeywords) -> LoadOptions:
    """Returns how a model is to be loaded.

    Raises:
        InputError: there is no option of a name, or one is unusable.
    """
    names = [entry.name for entry in fields(LoadOptions)]
    for name in given:
        if name not in names:
            raise InputError(f"load has no option {name!r}{suggestion(name, names)}")
    return LoadOptions(**given)


def with_options(
    items: Sequence[T], options: Sequence[SamplingKeywords] | None, common: SamplingKeywords
) -> list[tuple[T, SamplingKeywords]]:
    """Returns each item with the sampling parameters that are its own or common to all.

    Raises:
        InputError: ``options`` is no list of as many dictionaries.
    """
    own = [{}] * len(items) if options is None else options
    if not isinstance(own, list | tuple) or not all(map(_are_keywords, own)):
        raise InputError(
            f"options is {shown(options)}; expected a list of dictionaries of sampling parameters"
        )
    if len(own) != len(items):
        raise InputError(f"{len(own)} options for {len(items)} prompts; expected one for each")
    return [(item, {**common, **keywords}) for item, keywords in zip(items, own, strict=True)]


def _are_keywords(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _items(name: str, value: object, expected: str) -> Iterable[object]:
    if isinstance(value, Iterable) and not isinstance(value, (Mapping, *NO_LISTS)):
        try:
            return iter(value)
        except TypeError:  # an array without dimensions
            pass
    raise PromptError(f"{name} is {shown(value)}; expected {expected}")


def _id(item: object, index: int, name: str) -> int:
    id_ = as_int(item)
    if id_ is None:
        raise PromptError(
            f"item {index} of {name} is {shown(item)}; expected a token id, a whole number"
        )
    return id_
