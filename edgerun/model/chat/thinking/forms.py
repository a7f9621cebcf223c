"""The forms in which models mark what they think, and which of them a model has."""

from __future__ import annotations

from edgerun.model.chat.thinking.channels import Channels
from edgerun.model.chat.thinking.form import ThoughtForm
from edgerun.model.chat.thinking.tags import Tags
from edgerun.model.text.controls import ControlTokens

ANSWER, RESPONSE = ("<answer>", "</answer>"), ("<response>", "</response>")

FORMS: tuple[ThoughtForm, ...] = (
    Channels(),
    Tags("<think:opensource>", "</think:opensource>"),  # Hy3
    # DeepSeek R1, Qwen3, SmolLM3, GLM, Kimi and many others; Hunyuan and Granite wrap answers.
    Tags("<think>", "</think>", wrappings=(ANSWER, RESPONSE)),
    Tags("[THINK]", "[/THINK]"),  # Magistral, Ministral
    Tags("<seed:think>", "</seed:think>"),  # Seed-OSS
    Tags("<mm:think>", "</mm:think>"),  # MiniMax M3
    Tags("<|channel>", "<channel|>", label="thought"),  # Gemma 4
    Tags("<thought>", "</thought>"),  # EXAONE Deep
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    Tags(  # Apriel
        "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", ending="[END FINAL RESPONSE]"
    ),
)


def thought_form(source: str, controls: ControlTokens) -> ThoughtForm | None:
    """How a model marks what it thinks.

    Args:
        source: of its chat template.
        controls: its control tokens.

    Returns:
        None where nothing says that it thinks.
    """
    suited = [each for form in FORMS if (each := form.suited(source, controls))]
    # A vocabulary may have marks of an older model that the template knows nothing of.
    named = [form for form in suited if form.is_named(source)]
    return next(iter(named or suited), None)
