"""Renders chat templates; imported in the sandbox alone (``edgerun.model.sandbox``).

A template comes with a model and may be hostile. minijinja's fuel bounds the number of
instructions, and the sandbox what a single one of them may build.
"""

from __future__ import annotations

import json
import re
from typing import Any

import minijinja

MAX_OUTPUT_CHARACTERS = 16 << 20
# minijinja finds methods where names of a map are looked for, so that "items" is in all of them.
METHODS = "|".join(name for name in dir(dict) if not name.startswith("_"))
TAG = re.compile(r"\{[{%](?:[^{]|\{(?![{%]))*?[%}]\}")
STRING = r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\""
LOOKED_FOR = re.compile(
    rf"(?P<name>(['\"])(?:{METHODS})\2)\s+(?P<negated>not\s+)?in\s+"
    r"(?P<map>[A-Za-z_]\w*(?:\.\w+|\[[^\[\]]*\])*)(?![\w.]|\s*[(\[|~+*/]|\s*[-%](?!\}|%))"
    rf"|{STRING}",
    re.DOTALL,
)


class RefusedError(Exception):
    """The template called raise_exception."""


def tojson(
    value: Any,
    indent: Any = None,
    ensure_ascii: bool = False,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: no HTML escapes, no ASCII escapes."""
    return json.dumps(
        value,
        indent=indent,
        ensure_ascii=ensure_ascii,
        separators=separators,
        sort_keys=sort_keys,
        default=python_value,
    )


def python_value(value: Any) -> Any:
    """Turns minijinja's own sequences and maps, and floats, into Python's, for printing."""
    if isinstance(value, PythonFloat):
        return value.value
    if hasattr(value, "keys"):
        return {key: value[key] for key in value.keys()}  # noqa: SIM118, not a dict
    return list(value)


class PythonFloat:
    """A number such as 1.0, which minijinja would hand to filters as 1, or 1e-07, which it spells.

    It is printed as Python prints it.
    """

    def __init__(self, value: float) -> None:
        self.value = value

    def __str__(self) -> str:
        return str(self.value)

    __repr__ = __str__

    def __bool__(self) -> bool:
        return bool(self.value)


def parse_float(text: str) -> float | PythonFloat:
    """Reads a number with a point or an exponent."""
    value = float(text)
    return PythonFloat(value) if value.is_integer() or "e" in repr(value) else value


def whole_float(value: float) -> PythonFloat:
    """What ``1.0 | tojson`` becomes in a template's source; see ``template``."""
    return PythonFloat(float(value))


def is_number(value: Any) -> bool:
    """Jinja's test, which counts booleans too."""
    return isinstance(value, int | float | PythonFloat)


def is_float(value: Any) -> bool:
    """Jinja's test."""
    return isinstance(value, float | PythonFloat)


def is_sequence(value: Any) -> bool:
    """Jinja's test, which counts text and maps too."""
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")


def holds(container: Any, item: Any) -> bool:
    """What ``item in container`` says in Python; nothing is in what is undefined."""
    return container is not None and item in container


def with_names_of_maps(source: str) -> str:
    """A template that asks Python whether a map has a name that is one of its methods, too."""
    return TAG.sub(lambda tag: LOOKED_FOR.sub(_asked_of_python, tag[0]), source)


def _asked_of_python(match: re.Match[str]) -> str:
    if not match["name"]:
        return match[0]
    return f"{match['negated'] or ''}holds({match['map']}, {match['name']})"


def raise_exception(message: object = "no reason given") -> None:
    """What templates call when a conversation does not suit the model."""
    raise RefusedError(str(message))


def strftime_now(layout: str) -> str:
    """The present local time."""
    from datetime import datetime

    return datetime.now().strftime(layout)


def is_iterable(value: Any) -> bool:
    """Jinja's test; minijinja's own counts None."""
    return hasattr(value, "__iter__")


def indent(text: str, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    """Jinja's filter; minijinja's own drops a newline at the end."""
    space = width if isinstance(width, str) else " " * width
    lines = (text + "\n").splitlines()
    following = [space + line if line or blank else line for line in lines[1:]]
    return "\n".join([space + lines[0] if first else lines[0], *following])


def environment(fuel: int) -> Any:
    """Builds an environment like the one of transformers' apply_chat_template."""
    rendering: Any = minijinja.Environment(
        fuel=fuel, trim_blocks=True, lstrip_blocks=True, debug=False
    )
    rendering.add_filter("tojson", tojson)
    rendering.add_filter("indent", indent)
    rendering.add_test("iterable", is_iterable)
    rendering.add_test("sequence", is_sequence)
    rendering.add_test("number", is_number)
    rendering.add_test("float", is_float)
    rendering.add_function("whole_float", whole_float)
    rendering.add_function("holds", holds)
    rendering.add_function("raise_exception", raise_exception)
    rendering.add_function("strftime_now", strftime_now)
    return rendering


def answer(request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Renders a template for some conversations; for none it is parsed.

    Args:
        request: ``source`` and ``fuel``, for each of them.
        payload: a list of what the template may name, as JSON.

    Returns:
        ``rendered``, of each its ``text``, or ``refusal``, the words with which the template
        refuses it.

    Raises:
        ValueError: there is too much text.
    """
    contexts = json.loads(payload, parse_float=parse_float)
    request = {**request, "source": with_names_of_maps(request["source"])}
    if not contexts:
        environment(request["fuel"]).add_template("chat", request["source"])
    rendered = [_rendered(request, context) for context in contexts]
    size = sum(len(each.get("text", "")) for each in rendered)
    if size > MAX_OUTPUT_CHARACTERS:
        raise ValueError(f"it produced {size} characters")
    return {"rendered": rendered}


def _rendered(request: dict[str, Any], context: dict[str, Any]) -> dict[str, str]:
    try:
        return {"text": environment(request["fuel"]).render_str(request["source"], **context)}
    except RefusedError as error:
        return {"refusal": str(error)[:500]}
