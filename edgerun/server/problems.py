"""What went wrong, as callers are told: a status and one sentence, in the form of OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

from edgerun.errors import (
    ConstraintError,
    EdgerunError,
    Full,
    InputError,
    MissingDependencyError,
    PromptError,
    shortened,
)

# What messages begin with that are about an argument of the library, or an item of one.
SUBJECT = re.compile(r"(message|tool) (\d+)\b|\w+")
PROMPT = "prompt"  # the argument whose field holds all of what is to be continued
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


@dataclass
class Problem(Exception):  # noqa: N818 - most of them are the caller's
    """A request that is not answered.

    Attributes:
        status: of HTTP.
        message: one sentence.
        code: for programs, as of OpenAI's API.
        param: which field of the body it is about.
        headers: of the answer.
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        """The answer, as JSON."""
        kind = KINDS.get(self.status, "invalid_request_error")
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            kind = "rate_limit_error"
        elif self.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            kind = "server_error"
        return {
            "error": {
                "message": shortened(self.message),
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }


def problem_of(error: BaseException) -> Problem:
    """What a caller is told of an error."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, PromptError) and error.context is not None:
        return Problem(400, str(error), "context_length_exceeded")
    if isinstance(error, InputError | ConstraintError):
        return Problem(400, str(error), "invalid_value")
    if isinstance(error, MissingDependencyError):
        return Problem(400, str(error), "not_installed")
    if isinstance(error, Full | MemoryError):
        return Problem(503, str(error) or "there is not enough memory", "out_of_memory")
    if isinstance(error, EdgerunError):
        return Problem(500, f"the model failed: {error}", "model_failed")
    return Problem(500, f"unexpected {type(error).__name__}: {error}; this is a defect", "defect")


def problem_with(error: BaseException, sent: Mapping[str, str]) -> Problem:
    """What a caller is told of an error of the library, in words of its own; see ``named``."""
    problem = named(problem_of(error), sent)
    if isinstance(error, PromptError) and problem.param is None:
        return replace(problem, param=sent.get(PROMPT))
    return problem


def named(problem: Problem, sent: Mapping[str, str]) -> Problem:
    """The same problem in the words of its caller, who knows fields and no arguments.

    Args:
        problem: whose message may begin with an argument of the library, or an item of one.
        sent: the field of each argument that was sent, and of items of one whose place in it is
            another: ``tools[3]``.
    """
    subject = SUBJECT.match(problem.message)
    if subject is None or problem.code != "invalid_value" or problem.param is not None:
        return problem
    argument, place = subject[0], ""
    if subject[1]:
        argument, place = f"{subject[1]}s", f"[{subject[2]}]"
    field = sent.get(f"{argument}{place}", f"{sent[argument]}{place}" if argument in sent else "")
    if not field:
        return problem
    return replace(problem, message=field + problem.message[subject.end() :], param=field)


def stopping() -> Problem:
    """What callers are told whose answers the end of the server cuts off."""
    return Problem(503, "the server is being stopped", "stopped", headers={"Retry-After": "5"})
