"""Which tokens a grammar allows: llguidance's matcher as a filter of candidates."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edgerun.engine.chooser.candidates import check_highest
from edgerun.engine.chooser.selection import scratch
from edgerun.engine.constraints.trial import LIMITS, MARKER, reason, token_library
from edgerun.errors import ConstraintError, SamplingError
from edgerun.forks import in_forked_child

T = TypeVar("T")
SIGN_BIT = np.uint32(31)
MINUS_INFINITY = np.float32(-np.inf).view(np.uint32)
# Of the processor, while all replies wait: a token takes 0.2 ms, and 100 if each has many readings.
SPARE_S, S_PER_TOKEN = 2.0, 0.005

if TYPE_CHECKING:
    from edgerun.engine.chooser.candidates import Candidates
    from edgerun.engine.chooser.vocabulary import Vocabulary


class TokenTree(NamedTuple):
    """A vocabulary as matchers want it.

    Attributes:
        library: llguidance's tokenizer.
        controls: control tokens that a grammar may name, with their ids.
        texts: packed bits, little-endian, of the ids that are no control tokens.
    """

    library: Any
    controls: dict[str, int]
    texts: NDArray[np.uint8]


_TREES: WeakKeyDictionary[Vocabulary, dict[int, TokenTree]] = WeakKeyDictionary()
_LOCK = threading.RLock()  # a handler of a signal may come in


def _begin_child() -> None:
    """For a forked child: whoever of its parent's threads held the lock is not there."""
    global _LOCK
    _LOCK = threading.RLock()


in_forked_child(_begin_child)


def token_tree(vocabulary: Vocabulary, vocab_size: int) -> TokenTree:
    """The tokens of a vocabulary as a tree, built once: 150,000 take most of a second.

    Args:
        vocabulary: texts of tokens.
        vocab_size: width of logits; ids of the vocabulary beyond it are left out.
    """
    with _LOCK:
        trees = _TREES.setdefault(vocabulary, {})
        if vocab_size not in trees:
            trees[vocab_size] = _token_tree(vocabulary, vocab_size)
        return trees[vocab_size]


def named_controls(vocabulary: Vocabulary) -> dict[str, int]:
    """Control tokens that are part of a reply's text, by their spelling."""
    unseen = vocabulary.hidden_ids | frozenset(vocabulary.eos_ids)
    ids = sorted(vocabulary.control_ids - unseen)
    return {vocabulary.token_bytes(id_).decode(): id_ for id_ in ids}


def _token_tree(vocabulary: Vocabulary, vocab_size: int) -> TokenTree:
    controls = {name: id_ for name, id_ in named_controls(vocabulary).items() if id_ < vocab_size}
    no_texts = vocabulary.control_ids | vocabulary.hidden_ids | frozenset(vocabulary.eos_ids)
    tokens = [
        vocabulary.token_bytes(id_) if id_ not in no_texts else b"" for id_ in range(vocab_size)
    ]
    texts = np.array([bool(token) for token in tokens])
    for name, id_ in controls.items():
        tokens[id_] = MARKER + name.encode()
    bits = np.packbits(texts, bitorder="little")
    return TokenTree(token_library(tokens), controls, bits)


class Meter:
    """Time of the processor that a grammar took, by all replies that share it."""

    def __init__(self) -> None:
        self._seconds = -SPARE_S

    @property
    def is_over(self) -> bool:
        """Whether it is more than others are to wait for."""
        return self._seconds > 0

    def measure(self, work: Callable[[], T], tokens: int = 0) -> T:
        """Does some work for so many tokens."""
        start = time.thread_time()
        try:
            return work()
        finally:
            seconds = self._seconds + time.thread_time() - start - tokens * S_PER_TOKEN
            self._seconds = max(seconds, -SPARE_S)


class Compiled(NamedTuple):
    """A grammar for the tokens of a vocabulary.

    Attributes:
        grammar: which ``trial.grammar_of`` returned.
        tree: of the vocabulary.
        vocab_size: width of logits.
        matcher: before an empty text.
        meter: of all that is made of it.
    """

    grammar: str
    tree: TokenTree
    vocab_size: int
    matcher: Any
    meter: Meter


def compiled(grammar: str, vocabulary: Vocabulary, vocab_size: int) -> Compiled:
    """Compiles a grammar; see ``Compiled``."""
    tree = token_tree(vocabulary, vocab_size)
    return Compiled(grammar, tree, vocab_size, _matcher(grammar, tree), Meter())


def _matcher(grammar: str, tree: TokenTree) -> Any:
    import llguidance

    limits = llguidance.LLParserLimits(**LIMITS)
    return llguidance.LLMatcher(tree.library, grammar, log_level=0, limits=limits)


class GrammarFilter:
    """Allows the tokens of one sequence with which its text goes on as some grammar says."""

    def __init__(self, name: str, grammars: Sequence[Compiled]) -> None:
        """Begins an empty text.

        Args:
            name: of the option that it comes from, for errors.
            grammars: of which a text follows one or another; all filters that are made of one share
                its lexer.

        Raises:
            SamplingError: no text of this vocabulary follows a grammar.
        """
        self._name, self._vocab_size = name, grammars[0].vocab_size
        self._walks = [_Walk(grammar) for grammar in grammars]
        self._stop_ids = np.zeros(0, np.int64)
        for walk in self._walks:
            if not walk.allowed.any():
                raise SamplingError(
                    f"{name} allows no text of this model's tokens"
                    f"{walk.reason() or ', but for the empty one'}"
                )

    def end_with(self, stop_ids: Iterable[int]) -> None:
        """See ``EndingFilter``."""
        ids = [id_ for id_ in stop_ids if id_ < self._vocab_size]
        self._stop_ids = np.array(sorted(ids), np.int64)

    def is_complete(self) -> bool:
        """See ``EndingFilter``."""
        if not any(walk.may_end for walk in self._walks):
            return False
        return not any(walk.has_error or walk.allowed.any() for walk in self._walks)

    def accept(self, id_: int) -> None:
        for walk in self._walks:
            walk.accept(id_)

    def undo(self, id_: int) -> None:
        for walk in self._walks:
            walk.undo()

    def apply(self, candidates: Candidates) -> Candidates:
        """Makes what is not allowed impossible, and leaves it there: what follows counts on it.

        Raises:
            ConstraintError: nothing is allowed, or it takes too long to tell.
            ChooserError: a logit is NaN.
        """
        bits = functools.reduce(np.bitwise_or, (walk.allowed for walk in self._walks))
        allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        if any(walk.may_end for walk in self._walks):
            allowed[self._stop_ids] = True
        if candidates.ids is not None:
            allowed = allowed[candidates.ids]
        make_impossible(candidates.logits, allowed)
        highest = candidates.logits.max()
        if any(walk.is_slow for walk in self._walks):
            raise ConstraintError(
                f"{self._name} takes over {1000 * S_PER_TOKEN:.0f} ms of the processor a token, as "
                "those do that a text follows in many ways: use a simpler one"
            )
        if highest == -np.inf:
            why = next(filter(None, (walk.reason() for walk in self._walks)), "")
            raise ConstraintError(
                f"{self._name} allows no token to go on with{why}; use a simpler one"
            )
        check_highest(highest)
        return candidates


class _Walk:
    """How far a text has come in a grammar."""

    def __init__(self, compiled: Compiled) -> None:
        self._grammar, self._tree, vocab_size, matcher, self._meter = compiled
        self._permitted = _permitted(self._grammar, self._tree, vocab_size)
        self._ids: list[int] = []
        self._strayed = 0  # ids at the end that the grammar does not allow
        self._bits: NDArray[np.uint8] | None = None  # what is allowed now, once somebody asked
        self._matcher = matcher.deep_copy()

    @property
    def is_slow(self) -> bool:
        """Whether the grammar takes more time than others are to wait for."""
        return self._meter.is_over

    @property
    def has_error(self) -> bool:
        """Whether it came to one of its limits."""
        return not self._strayed and bool(self._matcher.is_error())

    @property
    def may_end(self) -> bool:
        """Whether the text may be all."""
        if self._strayed or self._matcher.is_error():
            return False
        return bool(self._matcher.is_accepting())

    @property
    def allowed(self) -> NDArray[np.uint8]:
        """Packed bits of the tokens that may follow, stop ids aside; none behind an error."""
        if self._bits is None and self._strayed:
            self._bits = np.zeros_like(self._permitted)
        elif self._bits is None:
            mask = np.frombuffer(self._meter.measure(self._matcher.compute_bitmask), np.uint8)
            self._bits = mask[: len(self._permitted)] & self._permitted
        return self._bits

    def accept(self, id_: int) -> None:
        """Goes on with a token, allowed or not."""
        self._bits = None
        self._ids.append(id_)
        if self._strayed or not self._consume(self._ids[-1:]):
            self._strayed += 1

    def undo(self) -> None:
        """Takes the last token back."""
        self._bits = None
        self._ids.pop()
        if self._strayed:
            self._strayed -= 1
        elif not self._matcher.rollback(1):  # it came to one of its limits, which it never forgets
            self._matcher = _matcher(self._grammar, self._tree)
            self._consume(self._ids)

    def reason(self) -> str:
        """What is wrong with the grammar, behind a colon; nothing if nothing is."""
        error = self._matcher.get_error()
        return f": {reason(error, places=False)}" if error else ""

    def _consume(self, ids: list[int]) -> bool:
        """Goes on with ids, as far as that is allowed; whether it was."""
        taken = self._meter.measure(lambda: self._matcher.try_consume_tokens(ids), len(ids))
        return bool(taken == len(ids))


def make_impossible(logits: NDArray[np.float32], allowed: NDArray[np.bool_]) -> None:
    """Sets logits to minus infinity where they are not allowed, in place; both ``[n]``.

    The minimum with an infinity whose sign is made of bits takes the same time for any mask. Where
    allowed and other tokens alternate, assigning to some takes ten times as long.
    """
    bounds = scratch("bounds", len(logits), "u4")
    bounds[:] = allowed
    bounds <<= SIGN_BIT
    bounds ^= MINUS_INFINITY
    np.minimum(logits, bounds.view(np.float32), out=logits)


def _permitted(grammar: str, tree: TokenTree, vocab_size: int) -> NDArray[np.uint8]:
    """Packed bits of tokens that may be part of a text: of control tokens, those that it names."""
    permitted = np.unpackbits(tree.texts, count=vocab_size, bitorder="little")
    named = [
        id_ for name, id_ in tree.controls.items() if name in grammar or f"<[{id_}]>" in grammar
    ]
    permitted[named] = 1
    return np.packbits(permitted, bitorder="little")
