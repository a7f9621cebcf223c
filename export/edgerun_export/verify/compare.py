"""Compares a bundle, run by onnxruntime, with a NumPy forward pass of its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgerun.backends.onnxruntime import BOUNDED, COMPLETE, release
from edgerun.errors import EdgerunError, MissingDependencyError
from edgerun.model.text.tokenizer import Tokenizer
from edgerun.telemetry import decline_telemetry
from edgerun_export.architectures import DecoderSpec
from edgerun_export.bundle_files import MODEL_FILE
from edgerun_export.source.weights import SourceWeights
from edgerun_export.verify.bundle_weights import BundleWeights
from edgerun_export.verify.numpy_model import forward
from edgerun_export.verify.parts import Weights

F32 = NDArray[np.float32]
Ids = NDArray[np.int64]

_TEXT = (
    "Once upon a time there was a small house near the sea. An old man lived in it with his dog, "
    "and every morning they walked along the beach to look for shells and driftwood."
)
_MAX_TOKENS, _DECODE_STEPS = 48, 2

# Largest difference between onnxruntime and NumPy on the same weights, relative to the range of
# the logits. Models that round activations to int8 jump where two sums fall on either side of .5.
_BOUND_EXACT, _BOUND_ROUNDED = 1e-3, 0.1
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"


class VerificationError(EdgerunError):
    """The exported bundle computes something else than its source."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a comparison found; errors are relative to the range of the logits.

    Attributes:
        source_tensors: tensors of the source, each of which was read to the end.
        tokens: length of the text.
        max_error: largest difference between onnxruntime, with kernels that do not round
            activations, and NumPy on the bundle's weights.
        bound: what ``max_error`` may be.
        kernel_error: the same with the kernels that the bundle asks for.
        top1_agreement: share of positions where onnxruntime on the bundle and NumPy on the
            source's weights prefer the same next token.
        kl_divergence: mean over positions, in nats, from the source's distribution to that of
            the bundle's weights.
        openvino_error: like ``max_error``, of the IR in OpenVINO, if the bundle has one.
    """

    source_tensors: int
    tokens: int
    max_error: float
    bound: float
    kernel_error: float
    top1_agreement: float
    kl_divergence: float
    openvino_error: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Figures rounded to what is worth comparing between machines."""
        return {
            key: float(f"{value:.3g}") if isinstance(value, float) else value
            for key, value in asdict(self).items()
            if value is not None
        }


def sample_ids(spec: DecoderSpec, tokenizer_json: bytes) -> Ids:
    """Encodes a short English text; a model without a usable tokenizer gets arbitrary ids."""
    limit = min(_MAX_TOKENS, spec.context_length)
    ids = Tokenizer.from_json(tokenizer_json.decode()).encode(_TEXT)[:limit]
    if len(ids) < min(2 * _DECODE_STEPS, limit):
        ids = [(7 * index + 3) % spec.vocab_size for index in range(limit)]
    return np.array(ids, np.int64)


def check_all_read(source: SourceWeights) -> None:
    """Checks, once the weights are written, that none of the source was passed over.

    Raises:
        VerificationError: a tensor was not read to the end.
    """
    unread = source.unread()
    if unread:
        raise VerificationError(
            f"the export has not read all of {len(unread)} of {source.count()} tensors, first "
            f"'{unread[0]}', so the bundle would compute something else; please report this model"
        )


def verify(
    folder: Path, spec: DecoderSpec, source: SourceWeights, ids: Ids, *, openvino: bool = False
) -> Report:
    """Runs the bundle and both NumPy references on ``ids``.

    Compared are the exporter's graph, its rounding and its files with a plain forward pass over the
    weights as the readers and ``spec`` understand the source. A misunderstanding of the source
    would be common to both sides: against that stand :func:`check_all_read` and the refusal of
    tensors without a place.

    Args:
        folder: the bundle.
        spec: its decoder.
        source: the weights it was made from.
        ids: token ids ``[tokens]``.
        openvino: run its IR in OpenVINO, too.

    Raises:
        VerificationError: onnxruntime or OpenVINO differ from NumPy beyond the bound, or
            onnxruntime cannot run the bundle.
        MissingDependencyError: onnxruntime is not installed, or too old for this model.
    """
    expected = forward(spec, BundleWeights(folder, spec), ids)
    report = Report(
        source_tensors=source.count(),
        tokens=len(ids),
        max_error=relative_error(run_onnx(folder, spec, ids, exact=True), expected),
        bound=_BOUND_EXACT if spec.ternary is None else _BOUND_ROUNDED,
        **_as_shipped(run_onnx(folder, spec, ids), expected, forward(spec, source, ids)),
        openvino_error=_openvino_error(folder, ids, expected) if openvino else None,
    )
    for runtime, error in (
        ("onnxruntime", report.max_error),
        ("OpenVINO", report.openvino_error or 0.0),
    ):
        if not error <= report.bound:
            raise VerificationError(
                f"the bundle's logits in {runtime} differ from the reference by {error:.2g} of "
                f"their range, more than {report.bound:g}; please report this model"
            )
    return report


def _openvino_error(folder: Path, ids: Ids, expected: F32) -> float:
    from edgerun_export.openvino_ir.check import run_stateful

    return relative_error(run_stateful(folder, ids, _DECODE_STEPS), expected)


def _as_shipped(actual: F32, expected: F32, reference: F32) -> dict[str, float]:
    return {
        "kernel_error": relative_error(actual, expected),
        "top1_agreement": float(np.mean(actual.argmax(-1) == reference.argmax(-1))),
        "kl_divergence": divergence(reference, expected),
    }


def damage(folder: Path, spec: DecoderSpec, source: Weights, ids: Ids) -> float:
    """Returns the mean KL divergence in nats that the bundle's weights cause on ``ids``."""
    return divergence(forward(spec, source, ids), forward(spec, BundleWeights(folder, spec), ids))


def damage_warning(formats: Sequence[str], quality: Mapping[str, Any]) -> str:
    """What a user should know of formats that moved a model's predictions."""
    error, divergence = quality["relative_weight_error"], quality["kl_divergence"]
    return (
        f"this model was not trained for {' and '.join(formats)} weights: rounding changed "
        f"them by {error:.0%} (root mean square) and moved its predictions by {divergence:.2g} "
        "nats a token; expect poor text, and prefer --weights int4"
    )


def relative_error(actual: F32, expected: F32) -> float:
    """Largest difference relative to the range of ``expected``; infinite if not all finite."""
    if not np.isfinite(actual).all():
        return float("inf")
    return float(np.abs(actual - expected).max() / np.ptp(expected))


def divergence(expected: F32, actual: F32) -> float:
    """Mean KL divergence in nats between the distributions of two sets of logits."""
    first, second = _log_softmax(expected), _log_softmax(actual)
    return float(np.mean(np.sum(np.exp(first) * (first - second), axis=-1)))


def run_onnx(
    folder: Path,
    spec: DecoderSpec,
    ids: Ids,
    decode_steps: int = _DECODE_STEPS,
    *,
    exact: bool = False,
) -> F32:
    """Runs the bundle in onnxruntime: a prefill, then single tokens; returns all logits.

    Args:
        folder: the bundle.
        spec: its decoder.
        ids: token ids ``[tokens]``.
        decode_steps: how many tokens at the end are run one by one.
        exact: use kernels that do not round activations, whatever the bundle asks for.

    Raises:
        VerificationError: onnxruntime cannot open or run the bundle.
        MissingDependencyError: onnxruntime is not installed, or too old for this model.
    """
    session = _session(folder, exact)
    names = [value.name for value in session.get_outputs()]
    inputs = {value.name for value in session.get_inputs()}
    cache = {
        value.name: np.zeros(_empty_shape(value.shape), np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past_key_values")
    }
    first = max(1, len(ids) - decode_steps)
    logits, position = [], 0
    for end in range(first, len(ids) + 1):
        feeds = {
            "input_ids": ids[None, position:end],
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(position, end, dtype=np.int64)[None],
            **cache,
        }
        feeds = {name: value for name, value in feeds.items() if name in inputs}
        with _runtime_errors():
            values = dict(zip(names, session.run(names, feeds), strict=True))
        logits.append(values.pop("logits")[0])
        cache = {k.replace("present", "past_key_values"): v for k, v in values.items()}
        position = end
    return np.concatenate(logits)


@contextmanager
def _runtime_errors() -> Iterator[None]:
    """Makes one sentence of what onnxruntime raises."""
    try:
        yield
    except Exception as error:  # its exception types are not public
        raise VerificationError(
            f"onnxruntime cannot run the bundle: {error}; please report this model"
        ) from error


def _empty_shape(shape: Sequence[int | str]) -> tuple[int, ...]:
    """Of what layers remember of one sequence, without tokens."""
    return 1, *(size if isinstance(size, int) else 0 for size in shape[1:])


def _session(folder: Path, exact: bool) -> Any:
    decline_telemetry()
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependencyError(
            "--verify needs onnxruntime; install it with: pip install onnxruntime"
        ) from error
    model = onnx.load(str(folder / MODEL_FILE), load_external_data=False)
    for node in model.graph.node if exact else ():
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 0 if node.op_type == "QMoE" else 1
    _check_release(onnxruntime.__version__, model)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # its errors come as exceptions
    settings.add_session_config_entry(_EXTERNAL_FOLDER, str(folder))
    # Threads that spin while they wait made opening a small model take three times as long.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Which it would plan by the square of the number of nodes, and experts are many.
    settings.enable_mem_reuse = not any(node.op_type == "ScatterND" for node in model.graph.node)
    with _runtime_errors():
        return onnxruntime.InferenceSession(
            model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
        )


def _check_release(installed: str, model: onnx.ModelProto) -> None:
    """Refuses what early releases cannot open, or compute wrongly.

    Raises:
        MissingDependencyError: the model has such nodes, and the release is an early one.
    """
    for node in model.graph.node:
        required, what = _needed(node)
        if release(installed) < required:
            raise MissingDependencyError(
                f"--verify needs onnxruntime {'.'.join(map(str, required))} for {what}, and "
                f"{installed} is installed: install a newer one, which takes Python 3.11 or newer, "
                "or leave --verify out"
            )


def _needed(node: onnx.NodeProto) -> tuple[tuple[int, ...], str]:
    """The first release that computes a node as it should, and what others do not."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if "bits" in attributes and attributes["bits"].i == 2:
        return COMPLETE, "2-bit weights"
    if node.op_type == "GroupQueryAttention":
        return COMPLETE, "the profile genai"
    if node.op_type == "Attention" and "softcap" in attributes:
        return BOUNDED, "scores that are bounded before they are masked"
    return (), ""


def _log_softmax(logits: F32) -> NDArray[np.float64]:
    shifted: NDArray[np.float64] = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    total: NDArray[np.float64] = np.exp(shifted).sum(axis=-1, keepdims=True)
    return shifted - np.log(total)
