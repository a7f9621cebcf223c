"""Text to token ids and back, such that a user's text never becomes control tokens.

Control tokens are the added tokens that structure a prompt (``<|im_end|>``, ``</s>``, ``[INST]``).
The wrapped ``tokenizers`` object never parses them: ``encode`` treats all its input as plain text,
and ``encode_template`` finds the control tokens of a rendered chat template itself, in which text
that came from a user is disguised (``disguise.py``), so that no control token is found in it.

Decoding works on bytes, so that a stream of pieces joins to exactly ``decode`` of all ids and
never splits a UTF-8 character.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from edgerun.errors import BundleError, EdgerunError, PromptError
from edgerun.limited import run_limited
from edgerun.model.chat.controls import ControlTokens
from edgerun.model.text.detokenizer import ByteDecoder, StreamDecoder, byte_decoder
from edgerun.model.text.text_bound import longest_span, solid_bytes
from edgerun.model.text.tokenizer_check import TextBounds, check_tokenizer_json
from edgerun.model.text.tokenizer_parts import check_parts

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

# End-of-turn tokens that many checkpoints leave out of their eos list (list of llama.cpp's
# llama-vocab.cpp, ``special_eog_ids``).
END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|return|>",
    "<|end_of_text|>",
    "<|eot|>",
)


SHORT = 4  # characters a token of a context, up to which text is encoded rather than estimated
MAX_TEXT_BYTES = 16 << 20  # encoded at once; the library needs up to a hundred times as much
LONG_BYTES = 4096  # what is encoded in milliseconds, and on the spot
# Longer than the slowest machine needs; what exceeds it is a tokenizer that never ends.
WALL_S, WALL_S_PER_BYTE = 30.0, 1e-4
# Growth of a text that is usual, and texts of what length are tried before the whole is.
USUAL_GROWTH, FREE_BYTES, SLICE_CHARACTERS = 16, 1 << 16, 1 << 10


class Tokenizer:
    """A Hugging Face ``tokenizer.json`` with edgerun's rules about control tokens.

    Attributes:
        vocab_size: number of ids, added tokens included.
        bos_ids: ids that start a sequence of plain text; often one, possibly none.
        eos_ids: ids that end a reply.
        controls: the control tokens.
    """

    def __init__(self, rust: RustTokenizer, config: Mapping[str, Any], bounds: TextBounds) -> None:
        """Wraps ``rust``, which must not be used elsewhere; see ``from_json``."""
        self._rust = rust
        self._bounds = bounds
        self._config = config
        self._lock = threading.Lock()
        rust.no_truncation()
        rust.no_padding()
        self.vocab_size = rust.get_vocab_size(with_added_tokens=True)
        self._added = {id_: token.content for id_, token in _added_tokens(rust).items()}
        hidden = {id_ for id_, token in _added_tokens(rust).items() if token.special}
        self.controls = ControlTokens.of(_added_tokens(rust))
        self._swallows_spaces = any(
            token.lstrip or token.rstrip for token in _added_tokens(rust).values()
        )
        self.bos_ids = self._find_bos_ids()
        self.eos_ids = self._find_eos_ids(hidden)
        self.hidden_ids = frozenset(hidden)
        self._forbid_control_tokens()
        self._bytes: ByteDecoder = byte_decoder(_state(rust.decoder), rust.id_to_token, self._added)

    @classmethod
    def from_json(cls, text: str, config: Mapping[str, Any] | None = None) -> Tokenizer:
        """Reads ``tokenizer.json``.

        Args:
            text: content of ``tokenizer.json``.
            config: content of ``tokenizer_config.json``; gives bos and eos tokens.

        Raises:
            BundleError: the text is not a tokenizer, or one that would multiply text or work.
            UnsupportedError: its decoder is of a kind that language models do not use.
        """
        from tokenizers import Tokenizer as RustTokenizer

        bounds = check_tokenizer_json(text)
        check_parts(text)
        try:
            return cls(RustTokenizer.from_str(text), config or {}, bounds)
        except EdgerunError:
            raise
        except BaseException as error:  # a panic in Rust is a BaseException
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            raise BundleError(f"tokenizer.json cannot be read: {_one_line(error)}") from error

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
        """Returns the id of one token, given as it is spelled in the vocabulary."""
        return self._rust.token_to_id(token)

    def encode(self, text: str, *, bos: bool = True) -> list[int]:
        """Encodes plain text; nothing in it becomes a control token.

        Args:
            text: any text; it may be empty.
            bos: start with ``bos_ids``.

        Raises:
            PromptError: the text is too long, or contains surrogates, which are not characters.
            BundleError: the tokenizer fails on this text, or takes too long.
        """
        ids = self._limited(text, lambda: self._encode_run(text, first=True))
        return (list(self.bos_ids) if bos else []) + ids

    def fewest_tokens(self, text: str) -> int:
        """A bound from below of the tokens that text has, without encoding it.

        Args:
            text: plain text or a rendered template.

        Returns:
            0 where nothing is known.
        """
        if self._span is None:
            return 0
        size = solid_bytes(text) if self._swallows_spaces else _size(text)
        return math.ceil(size / self._span)

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
            BundleError: the tokenizer fails on this text, or takes too long.
        """
        return self._limited(text, lambda: self._encode_controlled(text, reveal, first=first))

    def _encode_controlled(
        self, text: str, reveal: Callable[[str], str], *, first: bool
    ) -> list[int]:
        ids: list[int] = []
        for run, control in self.controls.split(text):
            plain = reveal(run)
            if plain:
                ids += self._encode_run(plain, first=first)
            if control is not None:
                ids.append(control)
            first = False
        return ids

    def starts_with_control(self, text: str) -> bool:
        """Whether a rendered template begins with a control token."""
        return self.controls.starts(text)

    def decode(self, ids: Iterable[int], *, continues: bool = False) -> str:
        """Decodes ids; tokens declared special are left out, bytes that are no UTF-8 become U+FFFD.

        Args:
            ids: token ids.
            continues: the text continues another one, so that the space that SentencePiece puts
                before the first word stays.
        """
        stream = self.stream(continues=continues)
        return "".join(stream.push(id_) for id_ in ids) + stream.finish()

    def token_bytes(self, id_: int) -> bytes:
        """Returns the UTF-8 bytes that one id stands for."""
        return self._bytes(id_)

    def stream(self, *, continues: bool = False) -> StreamDecoder:
        """Returns a decoder that is fed one id at a time; see ``decode``."""
        return StreamDecoder(self._bytes, self.hidden_ids, continues=continues)

    def check_fits(self, text: str, context: int) -> None:
        """Refuses text whose length alone says that it does not fit, before it is encoded.

        Raises:
            PromptError: it has more tokens than the context, one of which must stay free.
        """
        if context < 2 or len(text) <= SHORT * context:  # a context of one is another error
            return
        fewest = self.fewest_tokens(text)
        if fewest >= context:
            raise PromptError(
                f"the prompt has {_size(text)} bytes, which are at least {fewest} tokens, and the "
                f"context is {context}: shorten the prompt",
                tokens=fewest,
                context=context,
            )

    @functools.cached_property
    def _span(self) -> float | None:
        """Bytes of text that a token stands for at most."""
        plain = [name for id_, name in self._added.items() if id_ not in self.controls.ids]
        controls = self.controls.names
        vocabulary = self._rust.get_vocab(with_added_tokens=False)
        return longest_span(self._bounds, vocabulary, [*plain, *controls])

    def _limited(self, text: str, encode: Callable[[], list[int]]) -> list[int]:
        """Encodes a text under limits of size and time."""
        size = _size(text)
        if size > MAX_TEXT_BYTES:
            raise PromptError(
                f"the text has {size} bytes; at most {MAX_TEXT_BYTES} are encoded at once"
            )
        self._check_growth(text, size)
        if not self._takes_long(size):
            return encode()
        limit = WALL_S + WALL_S_PER_BYTE * size
        try:
            return run_limited(encode, limit)
        except TimeoutError as error:
            raise BundleError(
                f"tokenizer.json needs more than {limit:.0f} s for a text of {size} bytes"
            ) from error

    def _takes_long(self, size: int) -> bool:
        return self._bounds.backtracks or size > LONG_BYTES

    def _check_growth(self, text: str, size: int) -> None:
        """Measures piece by piece what the normalizer makes of a text where that may be much."""
        normalizer = self._rust.normalizer
        if self._bounds.growth <= USUAL_GROWTH or normalizer is None:
            return
        grown, most = 0, USUAL_GROWTH * size + FREE_BYTES
        for start in range(0, len(text), SLICE_CHARACTERS):
            with _as_bundle_error():
                grown += _size(normalizer.normalize_str(text[start : start + SLICE_CHARACTERS]))
            if grown > most:
                raise BundleError(
                    f"tokenizer.json makes more than {most} bytes of a text of {size} bytes"
                )

    def _encode_run(self, text: str, *, first: bool) -> list[int]:
        ids = self._encode_plain(text, first=first)
        if self.controls.ids.isdisjoint(ids):
            return ids
        return self._encode_around(text, first=first)

    def _encode_plain(self, text: str, *, first: bool) -> list[int]:
        try:
            with _as_bundle_error(), self._lock, _prefix_only_at_start(self._rust, first=first):
                if not self._takes_long(_size(text)):
                    return list(self._rust.encode(text, add_special_tokens=False).ids)
                # Unlike `encode` it lets other threads run, the main one with its Ctrl-C too.
                (encoding,) = self._rust.encode_batch_fast([text], add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:  # how it complains depends on versions
            raise PromptError(
                "the prompt contains a surrogate code point, which is not a character: "
                "pass text that can be encoded as UTF-8"
            ) from error
        return list(encoding.ids)

    def _encode_around(self, text: str, *, first: bool) -> list[int]:
        """Encodes text from which the model itself (Unigram, WordLevel) makes control tokens."""
        if len(text) == 1:
            raise PromptError(f"the character {text!r} is a control token of this model")
        ids: list[int] = []
        middle = len(text) // 2
        for index, part in enumerate((text[:middle], text[middle:])):
            ids += self._encode_run(part, first=first and index == 0)
        return ids

    def _find_bos_ids(self) -> tuple[int, ...]:
        bos = self.token_id(self.special_token("bos")) if self.special_token("bos") else None
        wanted = self._config.get("add_bos_token")
        if isinstance(wanted, bool):
            return (bos,) if wanted and bos is not None else ()
        plain = self._rust.encode("a", add_special_tokens=False).ids
        full = self._rust.encode("a", add_special_tokens=True).ids
        for start in range(len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return tuple(full[:start])
        return ()

    def _find_eos_ids(self, hidden: set[int]) -> tuple[int, ...]:
        names = [self.special_token("eos"), *END_OF_TURN]
        ids = [self.token_id(name) for name in names if name]
        wanted = [id_ for id_ in ids if id_ is not None and (id_ in hidden or id_ == ids[0])]
        return tuple(dict.fromkeys(wanted))

    def _forbid_control_tokens(self) -> None:
        from tokenizers import AddedToken

        controls = [AddedToken(name, special=True) for name in self.controls.names]
        if controls:
            self._rust.add_special_tokens(controls)
        self._rust.encode_special_tokens = True


@contextlib.contextmanager
def _as_bundle_error() -> Iterator[None]:
    """Says what a panic or an error of the library is to a user: a defect of the file."""
    try:
        yield
    except BaseException as error:
        panic = type(error).__name__ == "PanicException"  # pyo3 derives it from BaseException
        if not panic and type(error) is not Exception:  # as which the library's own errors come
            raise
        raise BundleError(f"tokenizer.json fails on this text: {_one_line(error)}") from error


class _prefix_only_at_start:  # noqa: N801, reads as a statement
    """Keeps Metaspace's ``"first"`` prefix from being added inside a sequence."""

    def __init__(self, rust: RustTokenizer, *, first: bool) -> None:
        self._changed = [] if first else list(_first_metaspaces(rust.pre_tokenizer))

    def __enter__(self) -> None:
        for part in self._changed:
            part.prepend_scheme = "never"

    def __exit__(self, *_: object) -> None:
        for part in self._changed:
            part.prepend_scheme = "first"


def _first_metaspaces(pre_tokenizer: Any) -> Iterator[Any]:
    kind = type(pre_tokenizer).__name__
    if kind == "Metaspace" and pre_tokenizer.prepend_scheme == "first":
        yield pre_tokenizer
    elif kind == "Sequence":
        for index in range(len(json.loads(pre_tokenizer.__getstate__())["pretokenizers"])):
            yield from _first_metaspaces(pre_tokenizer[index])


def _added_tokens(rust: RustTokenizer) -> Mapping[int, Any]:
    return rust.get_added_tokens_decoder()


def _state(part: Any) -> dict[str, Any] | None:
    return None if part is None else json.loads(part.__getstate__())


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
