"""A grammar is tried in the sandbox before this process compiles it.

llguidance is native code. Most of what it does is under limits of its own; that some grammars
take gigabytes or minutes to compile, or more stack than there is, is known when a child process
has died of them (docs/adr/0061-replies-that-follow-a-grammar.md).
"""

from __future__ import annotations

import functools
import importlib.util
import json
import threading
from collections.abc import Mapping
from typing import Any

from edgerun.engine.constraints.numbers import with_exact_numbers
from edgerun.engine.constraints.spelling import with_spelling
from edgerun.errors import MissingDependencyError, SamplingError
from edgerun.values import shown

MODULE = "edgerun.engine.constraints.trial"
PACKAGE = "llguidance"
# What is no attack takes some milliseconds, and 1 s and 115 MB if it has 1 MB.
CPU_S, CPU_S_PER_BYTE = 0.5, 4e-6
MEMORY_BYTES, MEMORY_BYTES_PER_BYTE = 64 << 20, 256
SHORT_BYTES = 1 << 15  # up to here texts do not wait for longer ones
STACK_BYTES = 4 << 20  # at most; a chain of a thousand references takes it
USUAL_STACK_BYTES = {"unlimited": 2 << 20, "unknown": 1 << 20}
PAGE_BYTES = 4096
STEPS = 64
BYTES = 256
# States of lexers take 1 to 2 kB each, and belong to a sequence.
LIMITS: dict[str, Any] = {"max_lexer_states": 50_000, "verbose_errors": False}
# What is forced is not encoded by us: any spelling of it in tokens may be chosen, as of all else.
OPTIONS = '\n%llguidance {"no_forcing": true}\n'
MARKER = b"\xff"  # before the spelling of a control token, which no text in UTF-8 has
NO_CONTROL = b"<>"
EXPECTED = {
    "json_schema": "a schema as docs/python.md describes it",
    "regex": "a regular expression of Rust's regex crate, which has no look-around",
    "grammar": "a grammar in llguidance's form of Lark, or in GBNF",
}


def check_installed(name: str) -> None:
    """Makes sure that llguidance is there.

    Raises:
        MissingDependencyError: it is not.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise MissingDependencyError(
            f"{name} needs llguidance, which is not installed: pip install 'edgerun[structured]'"
        )


@functools.lru_cache(16)
def grammar_of(
    name: str, text: str, named: tuple[tuple[str, int], ...] = (), vocab_size: int = 0
) -> str:
    """Tries what somebody asks of replies, and returns it as a grammar of llguidance's.

    Args:
        name: of the option: ``json_schema``, ``regex`` or ``grammar``.
        text: its value.
        named: control tokens that a grammar may name, with their ids.
        vocab_size: ids that a grammar may name are below this.

    Raises:
        SamplingError: llguidance does not understand it, it takes too much time or memory, or no
            text follows it.
    """
    from edgerun.model.sandbox.process import sandbox

    request, payload = {"name": name, "named": named, "vocab_size": vocab_size}, text.encode()
    work = "grammars" if len(payload) <= SHORT_BYTES else "long grammars"
    answer = sandbox(work).ask(
        MODULE,
        request,
        payload,
        cpu_s=CPU_S + CPU_S_PER_BYTE * len(payload),
        memory_bytes=MEMORY_BYTES + MEMORY_BYTES_PER_BYTE * len(payload) + 16 * vocab_size,
    )
    refusal = answer.get("error") or answer["result"]["refusal"]
    if refusal:
        raise SamplingError(f"{name} is {shown(text)}: {refusal}; expected {EXPECTED[name]}")
    grammar: str = answer["result"]["grammar"]
    return grammar


def reason(error: str, *, places: bool) -> str:
    """What an error of llguidance says, on one line, without the source that it quotes.

    Args:
        error: of several lines.
        places: whether lines and columns are those of the caller's text.
    """
    import re

    text = re.split(r"\n\s*\d+ \| |\n<", error)[0]
    text = re.sub(r"(?s)invalid regex .*?regex parse error:|regex parse error:", "\0", text)
    head, parse_error, rest = text.partition("\0")
    if parse_error:  # whose last line says what is wrong
        text = head + rest.rpartition("error:")[2]
    match = re.match(r"(?:at )?(\d+)\((\d+)\): (.*)", text, re.DOTALL)
    if match:
        place = f"line {match[1]}, column {match[2]}: " if places else ""
        text = place + match[3]
    text = text.replace("failed to compile JSON schema: ", "")
    text = re.sub(r'(?s)invalid regex ".*" \(in regex\): ', "", text)
    text = text.partition("; following special tokens are available")[0]
    text = {"NoExtensionBias": "no text follows it"}.get(text.strip(), text)
    return " ".join(text.split())[:300].rstrip(" .")


# In the sandbox.


def answer(request: Mapping[str, Any], payload: bytes) -> dict[str, Any]:
    """Answers a request of ``grammar_of``: the grammar, or why it is refused."""
    results: list[dict[str, Any]] = []
    threading.stack_size(stack_bytes())
    thread = threading.Thread(target=lambda: results.append(_tried(request, payload.decode())))
    thread.start()
    thread.join()
    return {"result": results[0]} if results else {"error": "llguidance fails on it"}


def stack_bytes() -> int:
    """Half of the stack that threads have where the limits are those of this process.

    The C library gives them what the main thread may have, and glibc 2 MB if that is unlimited.
    """
    try:
        import resource
    except ImportError:
        return USUAL_STACK_BYTES["unknown"] // 2
    limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
    usual = USUAL_STACK_BYTES["unlimited"] if limit == resource.RLIM_INFINITY else limit
    return min(STACK_BYTES, usual // 2) // PAGE_BYTES * PAGE_BYTES


def _tried(request: Mapping[str, Any], text: str) -> dict[str, Any]:
    name = request["name"]
    try:
        grammar, is_same = _GRAMMARS[name](text)
    except Exception as error:  # of the conversion from GBNF, which raises what it likes
        return {"grammar": "", "refusal": " ".join(str(error).split())[:300]}
    refusal = _refusal(grammar, dict(request["named"]), request["vocab_size"])
    return {"grammar": grammar, "refusal": reason(refusal, places=is_same)}


def _refusal(grammar: str, named: Mapping[str, int], vocab_size: int) -> str:
    """Compiles a grammar for single bytes and goes some steps; what is wrong, or nothing."""
    import llguidance

    library = token_library(_single_bytes(named, vocab_size), slices=[])
    limits = llguidance.LLParserLimits(**LIMITS)
    matcher = llguidance.LLMatcher(library, grammar, log_level=0, limits=limits)
    for step in range(STEPS):
        if matcher.is_error() or matcher.is_stopped():
            break
        allowed = [id_ for id_ in _ids(matcher.compute_bitmask()) if id_ != library.eos_token]
        if step and not allowed:  # the reply may go another way
            return ""
        if not allowed:
            break
        matcher.consume_token(allowed[-(step % 2)])
        if step == 0 and matcher.rollback(1):
            matcher.consume_token(allowed[0])
    else:
        return ""
    return matcher.get_error() or ("" if step else "no text but the empty one follows it")


def _single_bytes(named: Mapping[str, int], vocab_size: int) -> list[bytes]:
    """A vocabulary of all bytes, and of the control tokens at their places."""
    tokens = [b""] * (max(vocab_size, *named.values(), 0) + 1 + BYTES)
    tokens[-1] = MARKER + NO_CONTROL  # llguidance 1.9 panics where a grammar names one of none
    for spelling, id_ in named.items():
        tokens[id_] = MARKER + spelling.encode()
    free = (id_ for id_, token in enumerate(tokens) if not token)
    for byte, id_ in zip(range(BYTES), free, strict=False):
        tokens[id_] = bytes([byte])
    return tokens


def _ids(mask: bytes) -> list[int]:
    """The ids whose bits are set."""
    places = ((place, byte) for place, byte in enumerate(mask) if byte)
    return [8 * place + bit for place, byte in places for bit in range(8) if byte >> bit & 1]


def token_library(tokens: list[bytes], slices: list[str] | None = None) -> Any:
    """A vocabulary as llguidance's tokenizer.

    Args:
        tokens: bytes of every id, those of control tokens behind a ``MARKER``; none for those that
            no text has.
        slices: expressions whose tokens are looked at together; None for those that suit most.
    """
    import llguidance

    wrapper: Any = Tokens(tokens)
    return llguidance.LLTokenizer(wrapper, slices=slices)


class Tokens:
    """Tokens in the form in which llguidance asks for them.

    The end of a text is an id of its own, the first behind the others.
    """

    is_tokenizer_wrapper = True
    eos_token_id = None
    bos_token_id = None
    special_token_ids = ()

    def __init__(self, tokens: list[bytes]) -> None:
        """Takes the bytes of every id."""
        self.tokens = tokens

    def __call__(self, text: str) -> list[int]:
        """Would encode what is forced; see ``OPTIONS``."""
        raise RuntimeError(f"nothing is forced, and so nothing is encoded: {text!r}")


def _from_schema(text: str) -> tuple[str, bool]:
    schema = with_spelling(with_exact_numbers(json.loads(text)))
    return f"start: %json {json.dumps(schema)}{OPTIONS}", False


def _from_regex(text: str) -> tuple[str, bool]:
    import llguidance

    if (len(text) - len(text.rstrip("\\"))) % 2:  # it would escape the end of the expression
        raise ValueError("incomplete escape sequence: it ends in a backslash that escapes nothing")
    return f"start: /{llguidance.regex_to_lark(text)}/{OPTIONS}", False


def _from_grammar(text: str) -> tuple[str, bool]:
    from edgerun.engine.constraints.gbnf import is_lark, to_lark

    if "::=" in text and not is_lark(text):
        return to_lark(text) + OPTIONS, False
    return text + OPTIONS, True


_GRAMMARS = {"json_schema": _from_schema, "regex": _from_regex, "grammar": _from_grammar}
