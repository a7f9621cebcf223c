"""What went wrong, in the form of Anthropic's API: https://platform.claude.com/docs/en/api/errors."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from edgerun.errors import shortened
from edgerun.server.problems import Problem

PATH = "/v1/messages"
KINDS = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}
TOO_LONG = "prompt is too long"  # by which clients know that they have to shorten a conversation


def message_problem(problem: Problem) -> dict[str, Any]:
    """The answer, or the event of a stream, as JSON."""
    is_ours = problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    kind = KINDS.get(
        HTTPStatus(problem.status), "api_error" if is_ours else "invalid_request_error"
    )
    message = problem.message
    if problem.code == "context_length_exceeded":
        message = f"{TOO_LONG}: {message}"
    return {"type": "error", "error": {"type": kind, "message": shortened(message)}}


def problem_body(path: str) -> Callable[[Problem], dict[str, Any]]:
    """How problems of a path are written."""
    return message_problem if f"{path}/".startswith(f"{PATH}/") else Problem.body
