"""What a caller may ask of a reply, checked when it is made."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from edgerun.engine.chooser.option import Option, Options, Switch, Whole, option
from edgerun.engine.chooser.processor import Processor, processor_types, processors_of
from edgerun.errors import SamplingError
from edgerun.values import shown, suggestion

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edgerun.engine.chooser.keywords import SamplingKeywords
    from edgerun.engine.chooser.vocabulary import Vocabulary

MAX_TOKENS = 2**31 - 1
MAX_SEED = 2**64 - 1
MAX_LOGPROBS = 20
MAX_STOPS = 64
MAX_STOP_IDS = 1024
MAX_STOP_CHARACTERS = 4096


class StopTexts(tuple[str, ...]):
    """Texts that were checked: those of a chat may be added, which no caller asked for."""

    __slots__ = ()


@dataclass(frozen=True)
class Texts:
    """A few short texts, or one."""

    accepts, flag, metavar, values = "str | Sequence[str]", list[str], "TEXT", "texts"

    def check(self, name: str, value: Any) -> StopTexts:
        if isinstance(value, StopTexts):
            return value
        texts = (value,) if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise SamplingError(f"{name} is {shown(value)}; expected a text or a list of texts")
        if "" in texts:
            raise SamplingError(
                f"{name} holds an empty text; expected 1 to {MAX_STOP_CHARACTERS} characters"
            )
        sizes = {len(text) for text in texts}
        if len(texts) > MAX_STOPS or not all(0 < size <= MAX_STOP_CHARACTERS for size in sizes):
            raise SamplingError(
                f"{name} has {len(texts)} texts of {sorted(sizes)} characters; expected at most "
                f"{MAX_STOPS} of 1 to {MAX_STOP_CHARACTERS} characters each"
            )
        return StopTexts(texts)

    def parse(self, text: str) -> tuple[str, ...]:
        return (text,)

    def write(self, value: Sequence[str]) -> str:
        """Several texts, of which ``parse`` takes none, in quotes."""
        texts = value if len(value) == 1 else map(repr, value)
        return " ".join(texts) or "none"


@dataclass(frozen=True)
class Ids:
    """Some token ids: every reply looks through all of them."""

    accepts, flag, metavar = "Iterable[int]", str, "ID,ID"
    values = f"at most {MAX_STOP_IDS} token ids, as in 5,7"

    def check(self, name: str, value: Any) -> tuple[int, ...]:
        refused = (str, bytes, bytearray, memoryview, Mapping)
        try:
            if isinstance(value, refused) or not isinstance(value, Iterable):
                raise TypeError
            items = tuple(islice(value, MAX_STOP_IDS + 1))
        except TypeError as error:  # an array without dimensions says so when it is read
            raise SamplingError(
                f"{name} is {shown(value)}; expected a list of token ids"
            ) from error
        if len(items) > MAX_STOP_IDS:
            raise SamplingError(
                f"{name} has more than {MAX_STOP_IDS} token ids; expected at most that many"
            )
        whole = Whole(0, MAX_TOKENS)
        return tuple(whole.check(name, item) for item in items)

    def parse(self, text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(","))

    def write(self, value: Sequence[int]) -> str:
        return ",".join(map(str, value)) or "none"


STOP = Texts()


@dataclass(frozen=True, init=False)
class SamplingParams(Options):
    """How tokens are chosen and when a reply ends.

    Every option of a processor is an argument too, such as ``temperature`` and ``top_k``;
    docs/python.md lists them. Their defaults change nothing.

    Attributes:
        max_tokens: most tokens to generate; None up to the end of the context.
        thinking_budget: in chats, most tokens before a model that thinks begins its answer.
        stop: texts that end the reply; they are not part of it.
        stop_ids: ids that end the reply, besides the model's own.
        ignore_eos: go on when the model ends its reply.
        seed: makes the choice repeatable; None draws a fresh one.
        logprobs: how many of the likeliest tokens to tell of beside each token of the reply, with
            the logarithms of their probabilities; None for no such figures at all.
        processors: what is done to the logits, in this order.

    Raises:
        SamplingError: there is no such option, or a value is outside its range.

    Example:
        >>> SamplingParams(temperature=0.7, seed=1).values()["temperature"]
        0.7
    """

    max_tokens: int | None = option(
        None, Whole(1, MAX_TOKENS, optional=True), "Most tokens to generate.", "-n"
    )
    thinking_budget: int | None = option(
        None,
        Whole(0, MAX_TOKENS, optional=True),
        "Most tokens of thoughts, after which a model that thinks has to answer.",
    )
    stop: tuple[str, ...] = option(
        (), STOP, "End the reply at this text, which is not part of it; can be repeated."
    )
    stop_ids: tuple[int, ...] = option(
        (), Ids(), "End the reply at these tokens, besides the model's own."
    )
    ignore_eos: bool = option(False, Switch(), "Go on when the model ends its reply.")
    seed: int | None = option(
        None, Whole(0, MAX_SEED, optional=True), "Makes the choice repeatable."
    )
    logprobs: int | None = option(
        None,
        Whole(0, MAX_LOGPROBS, optional=True),
        "Tell how likely the model held each token, and so many of the likeliest beside it.",
    )
    processors: tuple[Processor, ...] = ()

    def __init__(self, **values: Unpack[SamplingKeywords]) -> None:
        """Takes any of ``all_options`` by name, or ``processors`` instead of options of theirs."""
        given: dict[str, Any] = dict(values)
        processors = given.pop("processors", None)
        names = [entry.name for entry in all_options()]
        for name in given:
            if name not in names:
                raise SamplingError(
                    f"there is no sampling parameter {name!r}{suggestion(name, names)}"
                )
        for entry in self.options():
            object.__setattr__(self, entry.name, given.pop(entry.name, entry.default))
        chosen = processors_of(given) if processors is None else _checked(processors, given)
        object.__setattr__(self, "processors", chosen)
        self.__post_init__()

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken every time."""
        return any(processor.is_greedy for processor in self.processors)

    @property
    def shapes_text(self) -> bool:
        """Whether it says what the text of a reply looks like."""
        return any(each.shapes_text and each.is_active for each in self.processors)

    def check_stops(self, vocab_size: int) -> None:
        """Makes sure that a model of so many tokens may say those that end its reply.

        Raises:
            SamplingError: it has no such token.
        """
        last = max(self.stop_ids, default=0)
        if last >= vocab_size:
            raise SamplingError(
                f"stop_ids holds {last}; the vocabulary of the model ends at {vocab_size - 1}"
            )

    def with_vocabulary(self, vocabulary: Vocabulary) -> SamplingParams:
        """Returns the same with processors that know the texts of tokens; ``LLM`` does this."""
        chosen = tuple(processor.with_vocabulary(vocabulary) for processor in self.processors)
        return self.replaced(processors=chosen)

    def replaced(self, **changes: Any) -> SamplingParams:
        """Returns the same with other values, which nobody checks: of code, not of callers."""
        other = copy.copy(self)
        for name, value in changes.items():
            object.__setattr__(other, name, value)
        return other

    def for_replies(self, count: int) -> list[SamplingParams]:
        """Returns those of several replies to one prompt: with a seed, each has another."""
        if self.seed is None or count == 1:
            return [self] * count
        seeds = [(self.seed + index) % (MAX_SEED + 1) for index in range(count)]
        return [self.replaced(seed=seed) for seed in seeds]

    def values(self) -> dict[str, Any]:
        """Returns the value of every option, in the order of ``all_options``."""
        return {
            entry.name: getattr(holder, entry.name)
            for holder in (self, *self.processors)
            for entry in holder.options()
        }


@cache
def all_options() -> tuple[Option, ...]:
    """Returns what ends a reply, and what there is to choose, in the order of the processors."""
    classes: Sequence[type[Options]] = (SamplingParams, *processor_types())
    return tuple(entry for options in classes for entry in options.options())


@cache
def text_options() -> tuple[Option, ...]:
    """Those of ``all_options`` that shape a reply's text, and not what is told of it beside."""
    return tuple(entry for entry in all_options() if entry.name != "logprobs")


def _checked(processors: Any, given: Mapping[str, Any]) -> tuple[Processor, ...]:
    if not isinstance(processors, list | tuple):
        raise SamplingError(f"processors is {shown(processors)}; expected a list of processors")
    for processor in processors:
        if not isinstance(processor, Processor):
            raise SamplingError(f"processors holds {shown(processor)}; expected processors only")
    if given:
        raise SamplingError(
            f"{next(iter(given))} is given beside a list of processors: put it into one of them"
        )
    return tuple(processors)
