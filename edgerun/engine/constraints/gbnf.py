"""Grammars in GBNF, llama.cpp's form, as llguidance's conversion of them understands them.

That copies escapes and characters as they stand into Lark, whose strings are those of JSON without
some, and whose classes are those of regular expressions. So each character of a literal or a class
is spelled here in the way that means itself in all three.
"""

from __future__ import annotations

import re
import string

SPANS = re.compile(
    r'#[^\r\n]*|"(?P<literal>(?:\\.|[^"\\])*)"|\[(?P<negated>\^?)(?P<choice>(?:\\.|[^\]\\])*)\]'
    r"|(?<=[*+?}])(?P<close>[ \t\r\n)]*\))(?=[ \t\r\n]*[*+?{])|(?P<any>\.)"
    r"|(?<![\w-])start(?![\w-])",
    re.DOTALL,
)
LARK = re.compile(r"^\s*(%llguidance\b|start\s*:(?!:=))", re.MULTILINE)
ANY = "[\\x00-\U0010ffff]"  # "." is no line break in regular expressions
CHARACTERS = re.compile(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<short>.))"
    r"|(?P<raw>.)",
    re.DOTALL,
)
SHORT = {"n": "\n", "r": "\r", "t": "\t", **dict(zip('"\\[]', '"\\[]', strict=True))}
ORDINARY = frozenset(string.ascii_letters + string.digits)
IN_LITERALS = frozenset(string.punctuation + " ") - {'"', "\\"}


def to_lark(text: str) -> str:
    """Translates a grammar.

    Raises:
        ValueError: an escape stands for no character, or the name of a rule has other letters than
            those of ASCII, of which llguidance would not say where they are.
        Exception: of llguidance's conversion, which raises what it likes; the text is no GBNF.
    """
    from llguidance.gbnf_to_lark import gbnf_to_lark

    names = SPANS.sub(lambda span: "\n" * span[0].count("\n"), text)
    own = "start-0"  # instead of start, which the conversion calls root
    while own in names:
        own += "0"
    if other := re.search(r"[^\x00-\x7f]", names):
        line = names.count("\n", 0, other.start()) + 1
        raise ValueError(f"line {line}: {other[0]!r} may stand in texts, classes and comments only")
    lark: str = gbnf_to_lark(SPANS.sub(lambda span: _respelled(span, text, own), text))
    return lark


def is_lark(text: str) -> bool:
    """Whether a text is a grammar of Lark, by a rule that only those have."""
    return LARK.search(text) is not None


def _respelled(span: re.Match[str], text: str, start: str) -> str:
    """A literal or a class in which each character means itself; a comment stays what it is.

    What is repeated in a group that is repeated gets an empty text beside it: llguidance leaves out
    parentheses around anything alone, and understands no repetition of a repetition then.
    """

    def respell(match: re.Match[str], as_they_are: frozenset[str]) -> str:
        code = match["x"] or match["u"] or match["U"]
        character = match["raw"] or SHORT.get(match["short"] or "")
        if code:
            number = int(code, 16)
            if number > 0x10FFFF or 0xD800 <= number < 0xE000:
                line = text.count("\n", 0, span.start()) + 1
                raise ValueError(f"line {line}: {match[0]} stands for no character")
            character = chr(number)
        if not character or (match["raw"] == "-" and span["choice"] is not None):
            return match[0]  # an escape that nobody knows, which is told; or a range
        is_plain = character in as_they_are or character >= "\xa0"
        return character if is_plain else f"\\x{ord(character):02x}"

    if span["literal"] is not None:
        allowed = ORDINARY | IN_LITERALS
        return f'"{CHARACTERS.sub(lambda match: respell(match, allowed), span["literal"])}"'
    if span["choice"] is not None:
        spelled = CHARACTERS.sub(lambda match: respell(match, ORDINARY), span["choice"])
        return f"[{span['negated']}{spelled}]"
    if span["any"]:
        return ANY
    if span[0] == "start":
        return start
    return f' ""{span[0]}' if span["close"] else span[0]
