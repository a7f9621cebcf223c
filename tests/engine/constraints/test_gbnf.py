"""Literals and classes of GBNF mean the characters that llama.cpp reads in them."""

from __future__ import annotations

import pytest

from edgerun.engine.constraints import trial
from edgerun.engine.constraints.gbnf import to_lark
from edgerun.engine.constraints.trial import reason, token_library

llguidance = pytest.importorskip("llguidance")


def follows(grammar: str, text: str) -> bool:
    """Whether a whole text is one of a grammar."""
    library = token_library([bytes([byte]) for byte in range(256)], slices=[])
    matcher = llguidance.LLMatcher(library, to_lark(grammar), log_level=0)
    assert not matcher.is_error(), reason(matcher.get_error(), places=False)
    return all(map(matcher.consume_token, text.encode())) and matcher.is_accepting()


CHARACTERS = [*map(chr, range(0x100)), "ā", "\u2028", "\ue000", "\ufdd0", "\uffff", "\U0001f600"]


@pytest.mark.parametrize("start", range(0, len(CHARACTERS), 32))
def test_a_character_is_itself_however_it_is_spelled(start: int) -> None:
    for character in CHARACTERS[start : start + 32]:
        code = ord(character)
        spellings = [f"\\U{code:08x}"]
        spellings += [f"\\u{code:04x}"] if code < 0x10000 else []
        spellings += [f"\\x{code:02X}"] if code < 0x100 else []
        texts = [*spellings, "\\" * (character in '"\\[]') + character]
        classes = [*spellings, "\\" * (character in '"\\[]') + character]
        for text in texts:
            assert follows(f'root ::= "a{text}b"', f"a{character}b")
        for text in classes if character not in "^-" else spellings:
            assert follows(f"root ::= [{text}]", character)
            assert follows(f"root ::= [a{text}b] #]", character)
            assert not follows(f"root ::= [^{text}]", character)


@pytest.mark.parametrize(
    ("grammar", "matching", "other"),
    [
        (r"root ::= [\u0041-\u0043]+", "ABCA", "-"),
        (r"root ::= [\x41\x2d\x43]+", "A-C", "B"),
        (r"root ::= [\^\x5e]".replace(r"\^", "a^"), "^", "b"),
        ("root ::= [-a]+", "a-", "b"),
        ("root ::= [a&&b~~c|(d)*.]+", "ab&~c|(d)*.", "e"),
        ('root ::= "a\nb" [\n] # "c\n', "a\nb\n", "ab"),
        ('root ::= [^"] "#" [#"]', 'a#"', '"##'),
        (r'root ::= "a" . "b"', "a\nb", "ab"),
        (r"root ::= .+ [.]", "\n\r\U0001f600.", "a"),
        ('root ::= start\nstart ::= "a" start | restart\nrestart ::= "."', "aa.", "a"),
        ('root ::= x\nx ::= "é" | [ぁ-ゟ] | "\\t\\r\\n"', "\t\r\n", "゠"),
    ],
)
def test_classes_have_ranges_and_nothing_else(grammar: str, matching: str, other: str) -> None:
    assert follows(grammar, matching)
    assert not follows(grammar, other)


@pytest.mark.parametrize(
    ("grammar", "matching", "other"),
    [
        ('root ::= (("a" "b"?)*){2} "c"', "aabac", "b"),
        ('root ::= ((("a"){2}) )+ "c"', "aaaac", "acc"),
        ('root ::= "*" ("a"+)? ("+)*") ("b"{1,2} | "c"+)*', "*aa+)*bbc", "aa+)*"),
    ],
)
def test_what_repeats_may_be_repeated(grammar: str, matching: str, other: str) -> None:
    assert follows(grammar, matching)
    assert not follows(grammar, other)


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('root ::= "a"\n\nx ::= "\\ud800"', r"line 3: \ud800 stands for no character"),
        ('root ::= "\\U00110000"', r"line 1: \U00110000 stands for no character"),
        ('root ::= "a"\nx ::= "\\d"', r"Invalid escape sequence \d at line 2"),
        ('root ::= "\\u12"', r"Invalid \u escape sequence"),
        ('root ::= "\n"\né ::= "é"', "line 3: 'é' may stand in texts, classes and comments only"),
    ],
)
def test_what_is_not_understood_is_named_with_its_place(grammar: str, words: str) -> None:
    assert words in trial._tried({"name": "grammar"}, grammar)["refusal"]
