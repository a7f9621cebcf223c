"""Control tokens that take part in calls, told apart from text that is spelled as they are.

A stream decoder leaves hidden tokens out and writes others as text, so that nobody could say
whether a model wrote the token ``<tool_call>`` or repeated the letters that a user had written.
Readers of calls therefore see each of these tokens as one character that decoded text never has:
half of a pair of surrogates.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from itertools import islice

from edgerun.model.text.controls import ControlTokens

FIRST, COUNT = 0xD800, 0x800


class Markers:
    """The control tokens of a tokenizer that stand in some texts.

    Attributes:
        characters: what stands for each, by its id.
    """

    def __init__(
        self, controls: ControlTokens, texts: Iterable[str], hidden: Container[int] = ()
    ) -> None:
        """Takes the tokens of a tokenizer.

        Args:
            controls: all of its control tokens.
            texts: which hold those that count.
            hidden: ids that give no text.
        """
        self._controls = controls
        names = dict.fromkeys(name for text in texts for name in controls.names_in(text))
        self._codes = {name: chr(FIRST + index) for index, name in enumerate(islice(names, COUNT))}
        self._names = {code: name for name, code in self._codes.items()}
        self._shown = {
            code: "" if controls.id_of(name) in hidden else name
            for code, name in self._names.items()
        }
        self._any = re.compile(f"[{''.join(self._names)}]" if self._names else "(?!)")
        self.characters: Mapping[int, str] = {
            controls.id_of(name): code for name, code in self._codes.items()
        }

    def coded(self, text: str) -> str:
        """A text as readers see it whose control tokens are tokens, as those of a template are."""
        return self._controls.replace(text, lambda name: self._codes.get(name, name))

    def spelled(self, text: str) -> str:
        """What readers see, all of it as text."""
        return self._any.sub(lambda match: self._names[match[0]], text)

    def shown(self, text: str) -> str:
        """What readers see, as decoders show it: hidden tokens are left out."""
        return self._any.sub(lambda match: self._shown[match[0]], text)
