"""Ways to run a graph, found by name."""

from edgerun.backends.base import (
    Backend,
    CompileOptions,
    Executable,
    Phase,
    Shape,
    Support,
)
from edgerun.backends.registry import backend_names, make_backend

__all__ = [
    "Backend",
    "CompileOptions",
    "Executable",
    "Phase",
    "Shape",
    "Support",
    "backend_names",
    "make_backend",
]
