"""The onnxruntime back-end: runs the original model file, sequence by sequence.

It is the oracle for what the file means, and the way to run graphs that our exporter did not
write. It computes whatever the file says, for as long as the file says, so it takes part only
when it is named. Keys and values are kept in the common cache, so that sessions work as
everywhere else; they are copied for every call, which makes it slow at long contexts.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import (
    NO_VALUES,
    Backend,
    CompileOptions,
    Executable,
    Shape,
    Support,
    Values,
)
from edgerun.errors import BackendError, BundleError, UnsupportedError
from edgerun.forks import each_in_forked_child
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph, Node
from edgerun.immortal import keep_for_ever
from edgerun.kernels.host.cores import worker_threads
from edgerun.limited import run_limited
from edgerun.ops.base import LOGITS
from edgerun.state import AttentionState, Batch, SequenceStore
from edgerun.telemetry import decline_telemetry

SECONDS_A_NODE = 2e-4
PAST = re.compile(r"past_key_values\.(\d+)\.(key|value)")
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
# The first with 2-bit MatMulNBits; earlier ones, all that Python 3.10 can have, also err in some
# attention.
COMPLETE = (1, 24)
# The first whose Attention bounds scores before it masks them: earlier ones give tokens that are
# not seen a score of minus the bound.
BOUNDED = (1, 27)
PARTS = ("key", "value")
TOKEN_INPUTS = ("input_ids", "attention_mask", "position_ids")


class OnnxruntimeExecutable(Executable):
    """Runs a model file."""

    def __init__(self, file: _ModelFile, options: CompileOptions) -> None:
        self._file: _ModelFile | None = file
        self._states = {
            state.name: state for state in options.states if isinstance(state, AttentionState)
        }
        self._inputs = {value.name: value for value in file.session().get_inputs()}
        self._check()
        self._presents = [
            f"{name.replace('past_key_values', 'present')}.{part}"
            for name in self._states
            for part in PARTS
        ]

    def __call__(self, batch: Batch, cache: SequenceStore, values: Values = NO_VALUES) -> Values:
        """Runs every sequence of the batch on its own; see ``Executable``."""
        logits = []
        for start, stop in batch.runs():
            chosen = batch.logit_rows[(batch.logit_rows >= start) & (batch.logit_rows < stop)]
            logits.append(self._run(batch, cache, start, stop)[chosen - start])
        return {LOGITS: np.concatenate(logits)}

    def close(self) -> None:
        """Drops the file."""
        self._file = None

    def _check(self) -> None:
        unknown = [
            name for name in self._inputs if name not in TOKEN_INPUTS and not PAST.fullmatch(name)
        ]
        if unknown:
            raise UnsupportedError(
                f"the model reads {', '.join(unknown)}; supported inputs are "
                f"{', '.join(TOKEN_INPUTS)} and past_key_values.N.key/value"
            )
        self._check_past([name for name in self._inputs if PAST.fullmatch(name)])

    def _check_past(self, past: list[str]) -> None:
        """The file keeps what the cache keeps."""
        expected = {
            f"{name}.{part}": state for name, state in self._states.items() for part in PARTS
        }
        if set(past) != set(expected):
            raise BundleError(
                f"the model file has {len(past)} past keys and values, but its description says "
                f"{len(self._states)} layers; expected two of each layer, from 0 on"
            )
        for name, state in expected.items():
            shape, kind = self._inputs[name].shape, self._inputs[name].type
            if kind not in TYPES:
                raise UnsupportedError(f"{name} is {kind}; supported are {', '.join(TYPES)}")
            size = state.key_dim if name.endswith("key") else state.value_dim
            sizes = {1: state.kv_heads, 3: size}
            if len(shape) != 4 or any(
                type(shape[axis]) is int and shape[axis] != count for axis, count in sizes.items()
            ):
                raise BundleError(
                    f"{name} of the model file has the shape {shape}, but its description says "
                    f"{state.kv_heads} heads of {size}"
                )

    def _run(
        self, batch: Batch, cache: SequenceStore, start: int, stop: int
    ) -> NDArray[np.float32]:
        assert self._file is not None
        sequence, past = int(batch.sequences[start]), int(batch.positions[start])
        tokens = stop - start
        given: dict[str, NDArray[Any]] = {
            "input_ids": batch.ids[None, start:stop].astype(np.int64),
            "attention_mask": np.ones((1, past + tokens), np.int64),
            "position_ids": batch.positions[None, start:stop].astype(np.int64),
        }
        feed = {name: given[name] for name in TOKEN_INPUTS if name in self._inputs}
        for name in self._states:
            held = cache.read_block(name, sequence, 0, past)
            for part, vectors in zip(PARTS, held, strict=True):
                kind = TYPES[self._inputs[f"{name}.{part}"].type]
                feed[f"{name}.{part}"] = vectors.transpose(1, 0, 2)[None].astype(kind)
        logits, *presents = _run_session(self._file.session(), [LOGITS, *self._presents], feed)
        for index, name in enumerate(self._states):
            keys, values = (
                part[0, :, past:].transpose(1, 0, 2).astype(np.float32)
                for part in presents[2 * index : 2 * index + 2]
            )
            cache.write_block(name, sequence, past, (keys, values))
        rows: NDArray[np.float32] = logits[0].astype(np.float32)
        return rows


class OnnxruntimeBackend(Backend):
    """Runs whole model files with onnxruntime's CPU provider."""

    name = "onnxruntime"
    whole_graph = True

    def __init__(self) -> None:
        self._files: dict[str, _ModelFile] = {}
        self._threads: int | None = None

    def configure(self, given: Mapping[str, Any]) -> None:
        """Takes the number of threads of a session."""
        self._threads = given.get("threads")

    def probe(self) -> Support:
        """Whether onnxruntime is installed."""
        if importlib.util.find_spec("onnxruntime") is None:
            return Support(False, "not installed: pip install onnxruntime")
        return Support(True)

    def supports(self, graph: Graph, node: Node, shape: Shape) -> Support:
        """Nearly everything, as long as the graph came from a file; some with late releases alone.

        Of a call of many tokens a file gives back what its next token's convolutions read, and
        pages are to have it of every token, or no prefix could be used again.
        """
        if graph.source is None:
            return Support(False, "the graph has no model file")
        if node.op == "short_conv":
            return Support(False, "onnxruntime gives back too little of what convolutions read")
        weights = (graph.constants.get(name) for name in node.inputs)
        packed = any(isinstance(weight, PackedWeight) and weight.bits == 2 for weight in weights)
        if packed or node.attrs.get("bits") == 2:
            return _two_bits()
        return _bounds() if node.attrs.get("softcap") else Support(True)

    def cost(self, graph: Graph, node: Node, shape: Shape) -> float:
        """A rough figure: it runs everything or nothing."""
        return SECONDS_A_NODE

    def compile(self, segment: Graph, shape: Shape, options: CompileOptions) -> Executable:
        """Opens the model file; all shapes share one session.

        Raises:
            BackendError: onnxruntime rejects the model.
        """
        path = str(segment.source)
        if path not in self._files:
            options.progress("onnxruntime session")
            reuses = all(node.op != "experts" for node in segment.nodes)
            threads = self._threads or worker_threads(None)
            self._files[path] = _ModelFile(path, threads, reuses)
        return OnnxruntimeExecutable(self._files[path], options)

    def close(self) -> None:
        """Drops the files."""
        self._files.clear()


class _ModelFile:
    """A model file with its session, which a forked child opens anew.

    The parent's has threads that the child has not, and would wait for them to be destroyed.
    """

    def __init__(self, *options: Any) -> None:
        """Opens it; see ``_session``."""
        self._options = options
        self._session: Any = _session(*options)
        _FILES.add(self)

    def session(self) -> Any:
        """The session of this process.

        Raises:
            BackendError: onnxruntime rejects the model.
        """
        if self._session is None:
            self._session = _session(*self._options)
        return self._session

    def begin_child(self) -> None:
        """Leaves the session to the parent."""
        keep_for_ever(self._session)
        self._session = None


_FILES = each_in_forked_child(_ModelFile.begin_child)


def release(version: str) -> tuple[int, ...]:
    """Major and minor number of a version."""
    return tuple(int(part) for part in version.split(".")[:2])


@cache
def _two_bits() -> Support:
    if sys.version_info >= (3, 11):  # where no earlier release is accepted
        return Support(True)
    from importlib.metadata import version  # takes 30 ms to import

    installed = version("onnxruntime")
    if release(installed) >= COMPLETE:
        return Support(True)
    return Support(False, f"onnxruntime {installed} has no 2-bit weights; 1.24 has")


@cache
def _bounds() -> Support:
    from importlib.metadata import version

    installed = version("onnxruntime")
    if release(installed) >= BOUNDED:
        return Support(True)
    return Support(False, f"onnxruntime {installed} masks scores before it bounds them; 1.27 after")


def _session(path: str, threads: int, reuses: bool) -> Any:
    """Opens a file; ``reuses`` has memory planned, by the square of the number of nodes."""
    decline_telemetry()  # whose thread a forked child has not, and would wait for at its end
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.enable_mem_reuse = reuses
    settings.log_severity_level = 4  # its errors come as exceptions

    def start() -> Any:
        return onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])

    try:
        return run_limited(start)
    except Exception as error:  # its exception types are not public
        raise BackendError(f"onnxruntime cannot open {path}: {error}") from error


def _run_session(session: Any, outputs: list[str], feed: dict[str, NDArray[Any]]) -> Any:
    import onnxruntime

    options = onnxruntime.RunOptions()

    def stop() -> None:
        options.terminate = True

    try:
        return run_limited(lambda: session.run(outputs, feed, options), stop=stop)
    except Exception as error:  # onnxruntime raises its own and plain RuntimeError alike
        raise BackendError(f"onnxruntime failed: {error}") from error


def make() -> OnnxruntimeBackend:
    """Makes the back-end."""
    return OnnxruntimeBackend()
