"""The process in which chat templates and tokenizers of models run; see ``process``.

Started as a script, never imported. Before each request it lets the system limit what the request
may take: processor time (a profiling timer kills the process) and address space; core files are
never written. What the libraries have to say on the standard error stream goes nowhere.

Protocol: a line of JSON, followed by ``payload_bytes`` of other data. The first line in says where
modules are and which will be needed; the first line out says that the process is ready. Then each
request names a module, whose ``answer`` is called; the reply is one line, ``{"error": ...}`` where
that fails, with ``is_limit`` where it is memory that it lacks.
"""

# Runs with `-I -S` to start fast: only the standard library until the first request.
import importlib
import json
import os
import sys
from typing import Any

MAX_ERROR_CHARACTERS = 500
ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",  # threads would each reserve address space
    "RUST_BACKTRACE": "0",  # which nobody would read, and which takes more memory than all else
    "RUST_LIB_BACKTRACE": "0",
}


def limit_memory(spare_bytes: int) -> None:
    """Lets the address space grow by so much from here on, where the system keeps account of it."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as status:
            pages = int(status.read().split()[0])
    except (ImportError, OSError):
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + spare_bytes
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def unlimit_memory() -> None:
    """Ends what ``limit_memory`` began: the next request may be longer than this one's room."""
    try:
        import resource
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def forbid_core_files() -> None:
    """A process that is killed leaves nothing behind."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def set_timer(seconds: float) -> None:
    """Lets the system kill this process after so much processor time; 0 stops the timer."""
    import signal

    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def answer(module: Any, request: dict[str, Any], payload: bytes) -> bytes:
    """Has a module answer a request; any failure becomes an answer."""
    try:
        reply = module.answer(request, payload)
        return json.dumps(reply).encode()
    except MemoryError:
        reply = {"error": "it needs more memory than is allowed", "is_limit": True}
    except BaseException as error:  # a panic in Rust is a BaseException
        lines = str(error).splitlines() or [type(error).__name__]
        reply = {"error": lines[0][:MAX_ERROR_CHARACTERS]}
    return json.dumps(reply).encode()


def main() -> None:
    """Answers requests until the input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    setup = json.loads(source.readline())
    sys.path += setup["path"]
    forbid_core_files()
    for name, value in ENVIRONMENT.items():
        os.putenv(name, value)
    sink.write(b'{"ready": true}\n')
    sink.flush()
    for name in setup["modules"]:
        importlib.import_module(name)
    for line in source:
        request = json.loads(line)
        payload = source.read(request["payload_bytes"])
        module = importlib.import_module(request["module"])
        limit_memory(request["memory_bytes"])
        set_timer(1e-6 * request["cpu_us"])
        reply = answer(module, request, payload) + b"\n"
        set_timer(0)
        unlimit_memory()
        sink.write(reply)
        sink.flush()


if __name__ == "__main__":
    main()
