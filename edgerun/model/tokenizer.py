"""Text to token ids and back, such that a user's text never becomes control tokens.

Control tokens are the added tokens that structure a prompt (``<|im_end|>``, ``</s>``, ``[INST]``).
The wrapped ``tokenizers`` object never parses them: ``encode`` treats all its input as plain text,
and ``encode_template`` finds the control tokens of a rendered chat template itself, in which text
that came from a user is disguised (``disguise.py``), so that no control token is found in it.

Decoding works on bytes, so that a stream of pieces joins to exactly ``decode`` of all ids and
never splits a UTF-8 character.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from edgerun.errors import BundleError, EdgerunError, PromptError
from edgerun.model.controls import ControlTokens
from edgerun.model.detokenizer import ByteDecoder, StreamDecoder, byte_decoder

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


class Tokenizer:
    """A Hugging Face ``tokenizer.json`` with edgerun's rules about control tokens.

    Attributes:
        vocab_size: number of ids, added tokens included.
        bos_ids: ids that start a sequence of plain text; often one, possibly none.
        eos_ids: ids that end a reply.
        controls: the control tokens.
    """

    def __init__(self, rust: RustTokenizer, config: Mapping[str, Any]) -> None:
        """Wraps ``rust``, which must not be used elsewhere; see ``from_json``."""
        self._rust = rust
        self._config = config
        self._lock = threading.Lock()
        rust.no_truncation()
        rust.no_padding()
        self.vocab_size = rust.get_vocab_size(with_added_tokens=True)
        self._added = {id_: token.content for id_, token in _added_tokens(rust).items()}
        hidden = {id_ for id_, token in _added_tokens(rust).items() if token.special}
        self.controls = ControlTokens.of(_added_tokens(rust))
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
            BundleError: the text is not a tokenizer.
            UnsupportedError: its decoder is of a kind that language models do not use.
        """
        from tokenizers import Tokenizer as RustTokenizer

        try:
            return cls(RustTokenizer.from_str(text), config or {})
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
            PromptError: the text contains surrogates, which are not characters.
        """
        return (list(self.bos_ids) if bos else []) + self._encode_run(text, first=True)

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
            PromptError: the text contains surrogates, which are not characters.
        """
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

    def _encode_run(self, text: str, *, first: bool) -> list[int]:
        ids = self._encode_plain(text, first=first)
        if self.controls.ids.isdisjoint(ids):
            return ids
        return self._encode_around(text, first=first)

    def _encode_plain(self, text: str, *, first: bool) -> list[int]:
        try:
            with self._lock, _prefix_only_at_start(self._rust, first=first):
                encoding = self._rust.encode(text, add_special_tokens=False)
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
