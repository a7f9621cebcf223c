"""Text to token ids and back, such that a user's text never becomes control tokens.

Control tokens are the added tokens that structure a prompt (``<|im_end|>``, ``</s>``, ``[INST]``).
The wrapped ``tokenizers`` object never parses them: ``encode`` treats all its input as plain text,
and ``encode_template`` finds the control tokens of a rendered chat template itself, in which text
that came from a user is disguised (``disguise.py``), so that no control token is found in it.

Decoding works on bytes, so that a stream of pieces joins to exactly ``decode`` of all ids and
never splits a UTF-8 character.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgerun.errors import BundleError, InputError, PromptError
from edgerun.model.sandbox.batches import BATCH_BYTES, batches
from edgerun.model.text.controls import ControlTokens
from edgerun.model.text.detokenizer import ByteDecoder, StreamDecoder, byte_decoder
from edgerun.model.text.ends import ends_of_turns
from edgerun.model.text.sandboxed_library import SandboxedLibrary
from edgerun.model.text.tokenizer_check import Span, check_tokenizer_json
from edgerun.values import as_int, shown

if TYPE_CHECKING:
    from edgerun.model.text.library import Library

MAX_ID = 1 << 32
CHARACTERS_PER_TOKEN = 4  # of a context, up to which text is encoded rather than estimated
MAX_TEXT_BYTES = 16 << 20  # encoded at once, unless its steps make more of it than is usual
USUAL_GROWTH = 16
HERE_BYTES = 4096  # which the library encodes in milliseconds; Ctrl-C is not obeyed meanwhile
BLOCK = 512  # ids whose spellings are asked for together


class Tokenizer:
    """A Hugging Face ``tokenizer.json`` with edgerun's rules about control tokens.

    Attributes:
        vocab_size: number of ids, added tokens included.
        bos_ids: ids that start a sequence of plain text; often one, possibly none.
        eos_ids: ids that end a reply.
        controls: the control tokens.
        hidden_ids: ids that give no text.
    """

    def __init__(self, text: str, config: Mapping[str, Any], library: Library | None) -> None:
        """Use ``from_json``."""
        self._bounds = check_tokenizer_json(text)
        self._config = config
        self._sandboxed = SandboxedLibrary(text)
        self._library = library or self._sandboxed
        facts = self._library.facts
        self.vocab_size = facts.vocab_size
        self._added = {token.id: token.content for token in facts.added}
        self._swallows_spaces = any(token.strip_left or token.strip_right for token in facts.added)
        self.controls = ControlTokens.of(facts.added)
        self.hidden_ids = frozenset(token.id for token in facts.added if token.special)
        self.bos_ids = self._find_bos_ids(facts.prefix)
        self.eos_ids = self._find_eos_ids()
        self._blocks: dict[int, list[str | None]] = {}
        self._bytes: ByteDecoder = byte_decoder(
            facts.decoder, self._spelling, self._added, self.controls.ids
        )

    @classmethod
    def from_json(
        cls, text: str, config: Mapping[str, Any] | None = None, *, is_own: bool = False
    ) -> Tokenizer:
        """Reads ``tokenizer.json``.

        Args:
            text: content of ``tokenizer.json``.
            config: content of ``tokenizer_config.json``; gives bos and eos tokens.
            is_own: it comes with edgerun, so that the library may run in this process.

        Raises:
            BundleError: the text is not a tokenizer, or one that would multiply text.
            UnsupportedError: its decoder is of a kind that language models do not use.
        """
        library = None
        if is_own:
            from edgerun.model.text.library import Library

            library = Library(text)
        return cls(text, config or {}, library)

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids of the control tokens that no text gives."""
        return self.controls.ids

    def special_token(self, role: str) -> str:
        """Returns the text of ``"bos"``, ``"eos"``, ``"unk"`` or ``"pad"``, ``""`` if absent."""
        entry = self._config.get(f"{role}_token")
        content = entry.get("content") if isinstance(entry, Mapping) else entry
        return content if isinstance(content, str) else ""

    def special_token_variables(self) -> dict[str, str]:
        """Returns what chat templates expect: ``bos_token``, ``eos_token`` and so on."""
        names = ("bos", "eos", "unk", "pad")
        return {f"{name}_token": self.special_token(name) for name in names}

    def token_id(self, token: str) -> int | None:
        """Returns the id of one token, given as it is spelled in the vocabulary.

        Raises:
            InputError: the token is no text.
        """
        if not isinstance(token, str):
            raise InputError(f"a token is {shown(token)}; expected its spelling, a text")
        return self._library.token_ids([token])[0]

    def encode(self, text: str, *, bos: bool = True) -> list[int]:
        """Encodes plain text; nothing in it becomes a control token.

        Args:
            text: any text; it may be empty.
            bos: start with ``bos_ids``.

        Raises:
            PromptError: the text is no string, is too long, or contains surrogates, which are not
                characters.
            BundleError: the tokenizer fails on this text, or takes too much time or memory.
        """
        (ids,) = self.encode_many([text], bos=bos)
        return ids

    def encode_many(self, texts: Sequence[str], *, bos: bool = True) -> list[list[int]]:
        """Encodes several texts, which takes less time than one after the other; see ``encode``."""
        for text in texts:
            if not isinstance(text, str):
                raise PromptError(f"a text to encode is {shown(text)}; expected a string")
        start = list(self.bos_ids) if bos else []
        encoded = self._encode_sequences([[text] for text in texts], [True] * len(texts))
        return [start + ids for (ids,) in encoded]

    def encode_parts(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes plain texts of one sequence, which the first of them begins; see ``encode``."""
        (parts,) = self._encode_sequences([texts], [True])
        return parts

    def fewest_tokens(self, text: str) -> int:
        """A bound from below of the tokens that text has, without encoding it.

        Args:
            text: plain text or a rendered template.

        Returns:
            0 where nothing is known.
        """
        if self._span is None:
            return 0
        return self._span.fewest_tokens("".join(text.split()) if self._swallows_spaces else text)

    def encode_template(
        self, text: str, reveal: Callable[[str], str] = str, *, first: bool = True
    ) -> list[int]:
        """Encodes a rendered chat template; control tokens in it are parsed.

        For conversations without control tokens in their content this gives the ids that
        Hugging Face's ``apply_chat_template(tokenize=True)`` gives.

        Args:
            text: the rendered template, with content disguised (``disguise.py``).
            reveal: takes the disguise off what lies between control tokens.
            first: whether ``text`` starts the sequence.

        Raises:
            PromptError: the text is too long, or contains surrogates, which are not characters.
            BundleError: the tokenizer fails on this text, or takes too much time or memory.
        """
        (ids,) = self.encode_templates([(text, reveal)], first=first)
        return ids

    def encode_templates(
        self, templates: Sequence[tuple[str, Callable[[str], str]]], *, first: bool = True
    ) -> list[list[int]]:
        """Encodes several rendered templates, each with its ``reveal``; see ``encode_template``."""
        split = [
            [(reveal(run), control) for run, control in self.controls.split(text)]
            for text, reveal in templates
        ]
        texts = [[run for run, _ in runs if run] for runs in split]
        starts = [first and bool(runs[0][0]) for runs in split]
        encoded = self._encode_sequences(texts, starts)
        return [_joined(runs, ids) for runs, ids in zip(split, encoded, strict=True)]

    def starts_with_control(self, text: str) -> bool:
        """Whether a rendered template begins with a control token."""
        return self.controls.starts(text)

    def decode(self, ids: Iterable[int], *, continues: bool = False) -> str:
        """Decodes ids; tokens declared special are left out, bytes that are no UTF-8 become U+FFFD.

        Args:
            ids: token ids.
            continues: the text continues another one, so that the space that SentencePiece puts
                before the first word stays.

        Raises:
            InputError: they are no ids.
        """
        try:
            each = iter(ids)
        except TypeError as error:  # of an array without dimensions, too
            raise InputError(f"ids are {shown(ids)}; expected several whole numbers") from error
        stream = self.stream(continues=continues)
        return "".join(stream.push(_checked_id(id_)) for id_ in each) + stream.finish()

    def token_bytes(self, id_: int) -> bytes:
        """Returns the bytes that one id stands for, which need not be whole characters of UTF-8.

        There are none of an id that ``decode`` leaves out, or that is outside the vocabulary. Those
        of several ids make up the text of these, but for a space that a decoder takes off at the
        start.

        Raises:
            InputError: the id is no whole number.
        """
        id_ = _checked_id(id_)
        return b"" if id_ in self.hidden_ids else self._bytes(id_)

    def spelled_bytes(self, id_: int) -> bytes:
        """Like ``token_bytes``, of tokens that ``decode`` leaves out as well: their names."""
        return self._bytes(_checked_id(id_))

    def stream(
        self, *, continues: bool = False, marked: Mapping[int, str] | None = None
    ) -> StreamDecoder:
        """Returns a decoder that is fed one id at a time; see ``decode``.

        Args:
            continues: as for ``decode``.
            marked: what stands for some ids, whether they are hidden or not.
        """
        return StreamDecoder(self._bytes, self.hidden_ids, continues=continues, marked=marked)

    def check_fits(self, text: str, context: int) -> None:
        """Refuses text whose length alone says that it does not fit, before it is encoded.

        Raises:
            PromptError: it has more tokens than the context, one of which must stay free.
        """
        if context < 2:  # another error
            return
        if len(text) <= CHARACTERS_PER_TOKEN * context:
            return
        fewest = self.fewest_tokens(text)
        if fewest >= context:
            raise PromptError(
                f"the prompt has {_size(text)} bytes, which are at least {fewest} tokens, and the "
                f"context is {context}: shorten the prompt",
                tokens=fewest,
                context=context,
            )

    def read_spellings(self, ids: int = 0) -> None:
        """Asks how all tokens are spelled, so that decoding waits for the library no more.

        The sandbox does one thing at a time: who decodes would wait for what others encode.

        Args:
            ids: that a model has, if these are more.
        """
        blocks = range(-(-max(ids, self.vocab_size) // BLOCK))
        if any(number not in self._blocks for number in blocks):
            spellings = self._library.tokens(0, len(blocks) * BLOCK)
            for number in blocks:
                self._blocks[number] = spellings[number * BLOCK : (number + 1) * BLOCK]

    @functools.cached_property
    def _span(self) -> Span | None:
        """How much text a token stands for at most."""
        plain = [name for id_, name in self._added.items() if id_ not in self.controls.ids]
        controls = self.controls.names
        self.read_spellings()
        spellings = itertools.chain.from_iterable([*self._blocks.values()])
        vocabulary = {spelling for spelling in spellings if spelling is not None}
        return self._bounds.span(vocabulary, [*plain, *controls])

    def _spelling(self, id_: int) -> str | None:
        """A token as the vocabulary spells it; None for an id that has none."""
        if not 0 <= id_ < MAX_ID:
            return None
        number, index = divmod(id_, BLOCK)
        if number not in self._blocks:
            start = number * BLOCK
            self._blocks[number] = self._library.tokens(start, start + BLOCK)
        return self._blocks[number][index]

    def _encode_sequences(
        self, sequences: Sequence[Sequence[str]], starts: Sequence[bool]
    ) -> list[list[list[int]]]:
        """Encodes the plain texts of each sequence; those of some start with the first of them."""
        sizes = [self._check_size(texts) for texts in sequences]
        limit = BATCH_BYTES if self._library is self._sandboxed else HERE_BYTES
        encoded: list[list[list[int]]] = []
        for batch in batches(sizes, limit):
            encoded += self._encode_batch(sequences[batch], starts[batch], sum(sizes[batch]))
        return encoded

    def _encode_batch(
        self, sequences: Sequence[Sequence[str]], starts: Sequence[bool], size: int
    ) -> list[list[list[int]]]:
        """Has the library encode some sequences; each alone if they fail together."""
        texts = [text for each in sequences for text in each]
        if not texts:
            return [[] for _ in sequences]
        first = [
            start and index == 0
            for each, start in zip(sequences, starts, strict=True)
            for index in range(len(each))
        ]
        library = self._sandboxed if size > HERE_BYTES else self._library
        try:
            encoded = library.encode(texts, first)
        except BundleError:
            if len(sequences) == 1:
                raise
            return self._encode_apart(sequences, starts)
        runs = iter(
            ids if self.controls.ids.isdisjoint(ids) else self._encode_around(text, first=is_first)
            for text, ids, is_first in zip(texts, encoded, first, strict=True)
        )
        return [list(itertools.islice(runs, len(each))) for each in sequences]

    def _encode_apart(
        self, sequences: Sequence[Sequence[str]], starts: Sequence[bool]
    ) -> list[list[list[int]]]:
        """Encodes some sequences in a request each, with the error of the first that fails."""
        return [
            self._encode_sequences([each], [start])[0]
            for each, start in zip(sequences, starts, strict=True)
        ]

    def _check_size(self, texts: Sequence[str]) -> int:
        try:
            size = sum(len(text.encode()) for text in texts)
        except UnicodeEncodeError as error:
            raise PromptError(
                "the prompt contains a surrogate code point, which is not a character: "
                "pass text that can be encoded as UTF-8"
            ) from error
        limit = MAX_TEXT_BYTES * USUAL_GROWTH // max(USUAL_GROWTH, self._bounds.growth)
        if size > limit:
            raise PromptError(f"the text has {size} bytes; at most {limit} are encoded at once")
        return size

    def _encode_around(self, text: str, *, first: bool) -> list[int]:
        """Encodes text from which the model itself (Unigram, WordLevel) makes control tokens."""
        if len(text) == 1:
            raise PromptError(f"the character {text!r} is a control token of this model")
        middle = len(text) // 2
        ((left, right),) = self._encode_sequences([[text[:middle], text[middle:]]], [first])
        return left + right

    def _find_bos_ids(self, prefix: tuple[int, ...]) -> tuple[int, ...]:
        name = self.special_token("bos")
        bos = self.token_id(name) if name else None
        has_bos = self._config.get("add_bos_token")
        if isinstance(has_bos, bool):
            return (bos,) if has_bos and bos is not None else ()
        return prefix

    def _find_eos_ids(self) -> tuple[int, ...]:
        turns = ends_of_turns(self.controls.names)
        names = [name for name in (self.special_token("eos"), *turns) if name]
        ids = self._library.token_ids(names)
        return tuple(
            dict.fromkeys(
                id_ for id_ in ids if id_ is not None and (id_ in self.hidden_ids or id_ == ids[0])
            )
        )


def _checked_id(id_: object) -> int:
    number = as_int(id_)
    if number is None:
        raise InputError(f"an id is {shown(id_)}; expected a whole number")
    return number


def _joined(runs: Sequence[tuple[str, int | None]], encoded: Iterable[Sequence[int]]) -> list[int]:
    """Ids of a template: of its texts, as far as there are some, and of the controls behind."""
    rest, ids = iter(encoded), list[int]()
    for run, control in runs:
        ids += next(rest) if run else ()
        ids += () if control is None else (control,)
    return ids


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
