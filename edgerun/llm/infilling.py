"""Prompts with a text behind the gap that a reply is to fill."""

from __future__ import annotations

from edgerun.engine.chooser.params import SamplingParams
from edgerun.errors import PromptError
from edgerun.llm.arguments import check_ids, check_prompt, check_text
from edgerun.llm.loading import Model
from edgerun.llm.opening import TextRequest
from edgerun.model.text.infill import Infill


def text_request(
    model: Model, prompt: object, suffix: object, params: SamplingParams, replies: int = 1
) -> TextRequest:
    """What continues a prompt, or fills the gap between it and a text behind.

    Args:
        model: that continues or fills.
        prompt: a text, or ids; with a suffix a text, which may be empty.
        suffix: the text behind; None for none.
        params: how replies are chosen.
        replies: how many there are to be.

    Raises:
        PromptError: an argument is unusable, or does not fit the context.
        UnsupportedError: the model cannot fill gaps.
    """
    if suffix is None:
        return TextRequest(check_prompt(prompt), params, replies)
    if not isinstance(prompt, str):
        check_ids(prompt, otherwise="a text or ")
        raise PromptError("the prompt is token ids, and there is a suffix: pass both as texts")
    infill, texts = Infill(model.tokenizer), (prompt, check_text("the suffix", suffix))
    for text in texts:
        model.tokenizer.check_fits(text, model.context)
    ends = tuple(dict.fromkeys((*params.stop_ids, *infill.stop_ids)))
    return TextRequest(infill.encode(*texts), params.replaced(stop_ids=ends), replies)
