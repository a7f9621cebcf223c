"""Beginnings of replies that a caller gives, and which models may have one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgerun.errors import InputError
from edgerun.model.chat.template import ChatTemplate

if TYPE_CHECKING:
    from edgerun.model.chat.thinking.form import ThoughtForm

# Stands among the names for a template, though none can have it: no disguise of control tokens may
# be what a beginning spells.
BEGINNING = "the beginning of a reply"


def check_beginning(
    beginning: str, prompt: str, template: ChatTemplate, thoughts: ThoughtForm | None
) -> None:
    """Makes sure that a model would go on with a beginning as with its own words.

    Args:
        beginning: of the reply.
        prompt: the rendered conversation, up to there.
        template: the model's.
        thoughts: how it marks them.

    Raises:
        InputError: something else comes first in its replies, or what does is not known.
    """
    reason = ""
    if template.is_default:
        reason = "no chat template says where replies of this model begin"
    elif thoughts and thoughts.has_begun(prompt):
        reason = "the chat template has replies begin with a thought, not with an answer"
    elif thoughts and thoughts.heads_answers:
        reason = "this model says first whether it thinks or answers"
    elif thoughts and thoughts.opening in beginning:
        reason = f"it has {thoughts.opening!r}, with which thoughts begin"
    if reason:
        raise InputError(f"beginning is what the reply goes on with, and {reason}: leave it out")
