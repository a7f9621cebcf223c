"""The process in which chat templates run; started by ``chat_template``, never imported.

A template comes with a model and may be hostile. minijinja's fuel bounds the number of
instructions, but a single one can build a gigabyte of text, so the work also happens under limits
that only an operating system can hold: processor time (a profiling timer kills the process),
address space, and no core file.

Protocol: one JSON object a line. The first line in says where minijinja is, the first line out
says that the process is ready; then each request gets one answer, ``{"text": ...}`` or
``{"error": ..., "refused": bool}``.
"""

# Runs with `-I -S` to start fast: only the standard library until the first request.
import json
import sys
from typing import Any

MAX_OUTPUT_CHARACTERS = 16 << 20


class RefusedError(Exception):
    """The template called raise_exception."""


def limit_memory(max_bytes: int) -> None:
    """Caps the address space and forbids core files, where the system can."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))


def set_timer(seconds: float) -> None:
    """Lets the system kill this process after so much processor time; 0 stops the timer."""
    import signal

    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


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
    """Turns minijinja's own sequences and maps, and whole floats, into Python's, for printing."""
    if isinstance(value, WholeFloat):
        return value.value
    if hasattr(value, "keys"):
        return {key: value[key] for key in value.keys()}  # noqa: SIM118, not a dict
    return list(value)


class WholeFloat:
    """A number such as 1.0, which minijinja would hand to filters as the integer 1."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __str__(self) -> str:
        return str(self.value)

    __repr__ = __str__

    def __bool__(self) -> bool:
        return bool(self.value)


def parse_float(text: str) -> "float | WholeFloat":
    """Reads a number with a point or an exponent."""
    value = float(text)
    return WholeFloat(value) if value.is_integer() else value


def whole_float(value: float) -> WholeFloat:
    """What ``1.0 | tojson`` becomes in a template's source; see ``chat_template``."""
    return WholeFloat(float(value))


def is_number(value: Any) -> bool:
    """Jinja's test, which counts booleans too."""
    return isinstance(value, int | float | WholeFloat)


def is_float(value: Any) -> bool:
    """Jinja's test."""
    return isinstance(value, float | WholeFloat)


def is_sequence(value: Any) -> bool:
    """Jinja's test, which counts text and maps too."""
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")


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
    rest = [space + line if line or blank else line for line in lines[1:]]
    return "\n".join([space + lines[0] if first else lines[0], *rest])


def environment(fuel: int) -> Any:
    """Builds an environment like the one of transformers' apply_chat_template."""
    import minijinja

    made: Any = minijinja.Environment(fuel=fuel, trim_blocks=True, lstrip_blocks=True, debug=False)
    made.add_filter("tojson", tojson)
    made.add_filter("indent", indent)
    made.add_test("iterable", is_iterable)
    made.add_test("sequence", is_sequence)
    made.add_test("number", is_number)
    made.add_test("float", is_float)
    made.add_function("whole_float", whole_float)
    made.add_function("raise_exception", raise_exception)
    made.add_function("strftime_now", strftime_now)
    return made


def render(request: dict[str, Any]) -> dict[str, Any]:
    """Renders one request; any failure becomes an answer."""
    try:
        text = environment(request["fuel"]).render_str(request["source"], **request["context"])
    except RefusedError as error:
        return {"error": str(error)[:500], "refused": True}
    except MemoryError:
        return {"error": "it needs more memory than allowed", "refused": False}
    except BaseException as error:  # a panic in Rust is a BaseException
        lines = str(error).splitlines() or [type(error).__name__]
        return {"error": lines[0][:500], "refused": False}
    if len(text) > MAX_OUTPUT_CHARACTERS:
        return {"error": f"it produced {len(text)} characters", "refused": False}
    return {"text": text}


def main() -> None:
    """Answers requests until the input ends."""
    setup = json.loads(sys.stdin.buffer.readline())
    sys.path[:0] = setup["path"]
    environment(1)  # imports minijinja before the limits
    limit_memory(setup["max_bytes"])
    sys.stdout.buffer.write(b'{"ready": true}\n')
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        request = json.loads(line, parse_float=parse_float)
        set_timer(1e-6 * request["cpu_us"])
        answer = json.dumps(render(request)).encode() + b"\n"
        set_timer(0)
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
