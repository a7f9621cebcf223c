"""Texts with a gap that a model is to fill, as models of code are made to.

Source: Bavarian et al. 2022. Such a model has control tokens that stand before the text before the
gap, before the text behind it, and where the gap's own text begins, in an order of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from edgerun.errors import UnsupportedError
from edgerun.model.text.tokenizer import Tokenizer


class InfillForm(NamedTuple):
    """How a model is given a text with a gap.

    Attributes:
        before: control token before the text before the gap.
        after: control token before the text behind the gap.
        gap: control token behind both; none where the gap's text follows at once.
        begins_behind: the text behind the gap comes first.
    """

    before: str
    after: str
    gap: str = ""
    begins_behind: bool = False

    @property
    def tokens(self) -> tuple[str, ...]:
        """All its control tokens."""
        return (self.before, self.after, *([self.gap] if self.gap else []))


FORMS: Mapping[str, InfillForm] = {
    "fim": InfillForm("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    "starcoder": InfillForm("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    "granite": InfillForm("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    "deepseek": InfillForm("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    "codellama": InfillForm("▁<PRE>", "▁<SUF>", "▁<MID>"),
    "glm": InfillForm("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    "codestral": InfillForm("[PREFIX]", "[SUFFIX]", begins_behind=True),
    "seed": InfillForm("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", begins_behind=True),
}
# What models write where a gap's text ends, besides the tokens of their form.
ENDS = (
    *("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<[fim-pad]>", "▁<EOT>", "<|cursor|>"),
    *("<|repo_name|>", "<repo_name>", "<reponame>", "<|file_sep|>", "<file_sep>"),
    *("<|file_separator|>", "<filename>", "<|endoftext|>"),
)


class Infill:
    """How one model fills gaps.

    Attributes:
        stop_ids: control tokens that end the text of a gap.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Looks for a form whose control tokens the model has.

        Raises:
            UnsupportedError: it has none.
        """
        names = frozenset(tokenizer.controls.names)
        form = next((each for each in FORMS.values() if names.issuperset(each.tokens)), None)
        if form is None:
            raise UnsupportedError(
                "this model has no control tokens that say where a gap in a text is: leave the "
                "suffix out, or use a model of code that has such, as Qwen2.5 Coder"
            )
        self._tokenizer, self._form = tokenizer, form
        ends = names.intersection((*form.tokens, *ENDS))
        self.stop_ids = tuple(sorted(tokenizer.controls.id_of(name) for name in ends))

    def encode(self, before: str, after: str) -> list[int]:
        """The prompt that asks for what is between two texts, whose control tokens are letters.

        Raises:
            PromptError, BundleError: see ``Tokenizer.encode``.
        """
        form, control = self._form, self._tokenizer.controls.id_of
        texts = self._tokenizer.encode_parts([before, after])
        parts = [[control(form.before), *texts[0]], [control(form.after), *texts[1]]]
        first, second = reversed(parts) if form.begins_behind else parts
        gap = [control(form.gap)] if form.gap else []
        return [*self._tokenizer.bos_ids, *first, *second, *gap]
