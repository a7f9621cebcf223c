"""Every error that edgerun raises on purpose.

    EdgerunError
    ├── InputError               the caller's mistake; nothing was changed
    │   ├── CheckpointError      a source checkpoint is missing, broken or inconsistent
    │   ├── BundleError          a bundle is missing, broken, altered or reaches outside itself
    │   ├── UnsupportedError     valid input that this version cannot handle
    │   ├── PromptError          a prompt is empty or does not fit the context
    │   ├── SamplingError        a sampling parameter is outside its range
    │   └── SessionError         a saved session is broken or belongs to another model
    ├── Full                     what runs needs more memory for its states than there is
    ├── StorageError             the disk is full or not writable
    ├── MissingDependencyError   an optional package is not installed
    ├── Cancelled                nobody wants any more what was being computed
    └── BackendError             a back-end failed while compiling or running
        └── ChooserError         no token could be chosen: logits are NaN, or none was left
            └── ConstraintError  what a reply was to follow allows no token any more

A message says what happened, with which value, what was expected, and what to do next, in one
sentence that a person at a terminal can act on.
"""

from __future__ import annotations

LONG_MESSAGE = 1000
LONG_WORD = 200
LONGEST_MESSAGE = 2000
VAST_MESSAGE = 20 * LONGEST_MESSAGE


class EdgerunError(Exception):
    """Base of all errors raised on purpose; ``str(error)`` is fit to show to a user.

    Names come from files, and one of five thousand letters would hide the sentence around it: in
    a long message ``str`` shows the ends of such words only; ``args`` has all of it.
    """

    def __str__(self) -> str:
        return shortened(super().__str__())


class InputError(EdgerunError):
    """The caller passed something unusable."""


class CheckpointError(InputError):
    """A source checkpoint is missing, truncated, corrupt or inconsistent."""


class BundleError(InputError):
    """A bundle is missing, truncated, altered, or names data outside its folder."""


class UnsupportedError(InputError):
    """The input is valid but this version has no implementation for it."""


class PromptError(InputError):
    """A prompt is empty or longer than the context allows.

    Attributes:
        tokens: length of the prompt, where it did not fit; else None.
        context: length of the context, where the prompt did not fit; else None.
    """

    def __init__(
        self, message: str = "", *, tokens: int | None = None, context: int | None = None
    ) -> None:
        super().__init__(message)
        self.tokens = tokens
        self.context = context


class SamplingError(InputError):
    """A sampling parameter is outside its documented range."""


class SessionError(InputError):
    """A saved session cannot be read or belongs to another model."""


class Full(EdgerunError):  # noqa: N818 - what a store says, and not a defect
    """No page is left for keys and values: end or postpone a sequence, or use a smaller cache."""


class StorageError(EdgerunError):
    """Writing failed: the disk is full or the target is not writable."""


class MissingDependencyError(EdgerunError):
    """An optional package is needed and not installed."""


class Cancelled(EdgerunError):  # noqa: N818 - no fault of anybody
    """Nobody wants any more what was being computed."""


class BackendError(EdgerunError):
    """A back-end failed while compiling or running a segment."""


class ChooserError(BackendError):
    """No token could be chosen for one sequence; others go on.

    The model computed NaN, or a sampling processor failed or left nothing to choose from.
    """


class ConstraintError(ChooserError):
    """A grammar, schema or regular expression allows no token, in the middle of a reply.

    It came to a limit of what is computed for it, or no tokens of the model can follow it further.
    """


def shortened(message: str) -> str:
    """The same message, with the ends of its long words only where it is long."""
    if len(message) <= LONG_MESSAGE:
        return message
    if len(message) > VAST_MESSAGE:  # whose words alone would take a while
        message = f"{message[:LONGEST_MESSAGE]}…{message[-LONGEST_MESSAGE:]}"
    short = " ".join(
        word if len(word) <= LONG_WORD else f"{word[: LONG_WORD // 2]}…{word[-LONG_WORD // 4 :]}"
        for word in message.split(" ")
    )
    return short if len(short) <= LONGEST_MESSAGE else f"{short[: LONGEST_MESSAGE - 1]}…"
