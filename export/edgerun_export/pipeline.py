"""The export: named steps from a checkpoint to a bundle, in a folder that appears when complete."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edgerun.errors import UnsupportedError
from edgerun.files.drafts import remove_abandoned
from edgerun.files.folder import atomic_folder, check_target
from edgerun.formats.base import PackedWeight
from edgerun_export.bundle_files import (
    MANIFEST_FILE,
    MODEL_FILE,
    file_entry,
    foreign_entries,
    genai_config,
    implied_generation,
    manifest,
    padding_id,
    parse_object,
    public_config,
    special_ids,
    special_tokens,
    to_json,
)
from edgerun_export.calibrate.fitted import FittedLayers
from edgerun_export.calibrate.step import (
    calibrate,
    checked_budget,
    read_text,
    with_methods,
)
from edgerun_export.calibrate.text import CalibrationText
from edgerun_export.calibrate.workers import single_threaded
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.checkpoint.base import Checkpoint
from edgerun_export.embedded_tokens import with_embeddings
from edgerun_export.graph.attention import check_fused
from edgerun_export.graph.builder import build_model
from edgerun_export.graph.external_data import DataWriter
from edgerun_export.graph.fused_experts import expert_warnings
from edgerun_export.graph.onnx_graph import OnnxGraph
from edgerun_export.graph.weight_store import WeightStore
from edgerun_export.openvino_ir.install import openvino_version
from edgerun_export.options import ExportOptions, check_effects
from edgerun_export.recipe import (
    SOURCE,
    Recipe,
    check_pack,
    check_weights,
    make_recipe,
    usual_head,
)
from edgerun_export.rules import (
    commonest_source_recipe,
    keeps_integers,
    source_recipe,
    source_warnings,
    two_bit_formats,
    with_rules,
)
from edgerun_export.sizes import size_warnings
from edgerun_export.source.model import interpret
from edgerun_export.target import calibration_folder, protect
from edgerun_export.verify.chat import template_problem
from edgerun_export.verify.compare import (
    VerificationError,
    check_all_read,
    damage,
    damage_warning,
    sample_ids,
    verify,
)

__all__ = ["STEPS", "ExportOptions", "ExportResult", "export", "export_checkpoint"]

STEPS = ("read", "transform", "calibrate", "weights", "files", "verify", "finish")
Progress = Callable[[str, float], None]
_POOR_NATS = 0.1  # a token; about what int4 does to the smallest models


@dataclass(slots=True)
class ExportResult:
    """What an export made.

    Attributes:
        folder: the bundle.
        recipe: the formats used.
        manifest: content of manifest.json.
        warnings: what a user should know, one sentence each.
    """

    folder: Path
    recipe: Recipe
    manifest: dict[str, Any]
    warnings: list[str] = field(default_factory=list)


def export(
    source: str | Path,
    out: Path,
    options: ExportOptions | None = None,
    progress: Progress = lambda step, fraction: None,
) -> ExportResult:
    """Exports a checkpoint to a bundle.

    Args:
        source: folder, file or hub id of the checkpoint.
        out: folder to make.
        options: what to make of it.
        progress: called with the name of the step (one of ``STEPS``) and the fraction done.

    Raises:
        CheckpointError: the checkpoint is broken or inconsistent.
        UnsupportedError: it, or an option, asks for something without an implementation.
        InputError: ``out`` exists and may not be replaced, or holds another's file of a name that
            the bundle needs.
        StorageError: ``out`` cannot be written.
        VerificationError: ``options.verify`` is set and the bundle computes something else.
    """
    options = options or ExportOptions()
    protect(out, source)  # first, since what it refuses --force would not help with
    check_target(out, replace=options.force)
    progress("read", 0.0)
    tokenizer = None if options.tokenizer is None else str(options.tokenizer)
    checkpoint = open_checkpoint(str(source), revision=options.revision, tokenizer=tokenizer)
    try:
        return export_checkpoint(checkpoint, out, options, progress)
    finally:
        checkpoint.close()


def export_checkpoint(
    checkpoint: Checkpoint, out: Path, options: ExportOptions, progress: Progress
) -> ExportResult:
    """Exports a checkpoint that is open, and stays so; see ``export``."""
    abandoned = remove_abandoned(out.resolve().parent)
    with calibration_folder(out, calibrates=bool(options.calibration.texts)) as resumable:
        with atomic_folder(out, replace=options.force, foreign=foreign_entries) as folder:
            job = _Job(checkpoint, options, folder, progress, resumable)
            result = job.run()
        if job.fitted is not None:
            job.fitted.remove()
    warnings = [
        f"removed '{name}', which an export that was killed had left behind" for name in abandoned
    ]
    return ExportResult(out, result.recipe, result.manifest, warnings + result.warnings)


class _Job:
    """One export; each step is a method, and leaves its result for the next."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: ExportOptions,
        folder: Path,
        progress: Progress,
        resumable: Path,
    ) -> None:
        self._checkpoint = checkpoint
        self._options = options
        self._folder = folder
        self._progress = progress
        self._files: dict[str, Any] = {}
        self._tools: dict[str, str] = {}
        self._quality: dict[str, Any] = {}
        self._warnings: list[str] = []
        self._resumable = resumable
        self.fitted: FittedLayers | None = None

    def run(self) -> ExportResult:
        """Runs all steps in order."""
        self._read()
        self._calibrate()
        # Transformed rows are products, which several cores sum in another order.
        with single_threaded() if self._recipe.transforms else nullcontext():
            self._write_weights()
        self._write_files()
        self._measure()
        return self._finish()

    def _read(self) -> None:
        """Checks everything that can be checked before a byte is written."""
        self._weights, assumptions = interpret(self._checkpoint)
        self._spec = self._weights.spec
        self._warnings += assumptions
        self._recipe = self._choose_recipe()
        if self._recipe.target.openvino:
            self._tools["openvino"] = openvino_version()
        if self._recipe.target.attention == "fused":
            check_fused(self._spec)
        self._warnings += expert_warnings(self._spec, self._recipe)
        self._texts, left_out = with_embeddings(self._spec, self._checkpoint.tokenizer_files())
        self._warnings += left_out
        self._tokenizer = self._text_object("tokenizer.json")
        problem = template_problem(self._text_object("tokenizer_config.json"))
        if problem is not None:
            if self._options.verify:
                raise VerificationError(problem)
            self._warnings.append(problem)

    def _choose_recipe(self) -> Recipe:
        options = self._options
        head = options.head_weights or usual_head(self._spec.hidden_size)
        weights = options.weights or self._usual_weights()
        group, rules = options.group_size, options.rules
        check_weights(weights)
        if weights == SOURCE:
            weights, group = self._source_format()
            rules = (f"*={SOURCE}", *rules)
        check_pack(options.pack, weights)
        method = checked_budget(options.method, options.calibration, options.profile)
        recipe = make_recipe(
            weights,
            group,
            head,
            options.activations,
            options.profile,
            method,
            options.transforms,
            options.scales,
            options.embedding_weights,
        )
        recipe = with_rules(recipe, rules, self._spec, partial(source_recipe, self._weights))
        check_effects(options, recipe)
        return with_methods(recipe, self._weights, calibrates=bool(options.calibration.texts))

    def _usual_weights(self) -> str:
        """The format of projections where none is asked for."""
        options = self._options
        if self._weights.natively_ternary():
            return "ternary"
        others = (options.group_size, options.method, options.transforms, options.calibration.texts)
        return SOURCE if not any(others) and keeps_integers(self._weights) else "int4"

    def _source_format(self) -> tuple[str, int]:
        """What most projections are stored in; the rest follows by a rule."""
        if self._options.group_size is not None or self._options.method is not None:
            raise UnsupportedError(
                f"--weights {SOURCE} keeps what the checkpoint has, so --group-size and --method "
                "have no effect; leave them out, or give them to a --rule"
            )
        if self._options.transforms:
            raise UnsupportedError(
                f"--weights {SOURCE} keeps what the checkpoint has, and --transform puts other "
                "weights in its place; leave one of them out"
            )
        self._warnings += source_warnings(self._weights)
        usual = commonest_source_recipe(self._weights)
        return usual.weights, usual.group_size

    def _calibrate(self) -> None:
        options = self._options.calibration
        text = read_text(options, self._texts, self._spec)
        if self._recipe.transforms:
            self._progress("transform", 0.0)
            self._transform(text)
        if text is None:
            return
        self._progress("calibrate", 0.0)
        done = calibrate(
            self._weights,
            self._recipe,
            text,
            options,
            self._resumable,
            partial(self._progress, "calibrate"),
            sum(map(len, self._texts.values())),
            self._checkpoint.config,
        )
        self._recipe, self.fitted = done.recipe, done.fitted
        self._quality |= done.quality
        self._warnings += done.warnings

    def _transform(self, text: CalibrationText | None) -> None:
        """Puts other weights of the same function in the place of the source's."""
        from edgerun_export.transforms import check_unchanged, transformed

        weights = transformed(self._recipe.transforms, self._weights, self._recipe, text)
        ids = sample_ids(self._spec, self._texts["tokenizer.json"])
        check_unchanged(self._weights, weights, ids)
        self._weights, self._spec = weights, weights.spec

    def _write_weights(self) -> None:
        self._progress("weights", 0.0)
        total = sum(map(math.prod, self._spec.tensors().values()))
        written = 0

        def count(weights: int) -> None:
            nonlocal written
            written += weights
            self._progress("weights", min(1.0, written / total))

        graph, target = OnnxGraph(), self._recipe.target
        with DataWriter(self._folder / target.data_file) as data:
            store = WeightStore(self._weights, self._recipe, data, graph, count, self._packed)
            model = build_model(self._spec, self._recipe, graph, store)
            path = self._folder / MODEL_FILE
            path.write_bytes(model.SerializeToString(deterministic=True))
            if target.openvino:
                from edgerun_export.openvino_ir.stateful import write_stateful

                write_stateful(path, data)
            self._files[target.data_file] = {"size": data.size, "sha256": data.sha256}
        self._whole_scales = store.whole_scales
        check_all_read(self._weights)
        self._quality["relative_weight_error"] = float(f"{store.damage.relative:.4g}")

    def _packed(self, name: str) -> PackedWeight | None:
        """A projection that was fitted to text."""
        return None if self.fitted is None else self.fitted.packed(name)

    def _write_files(self) -> None:
        self._progress("files", 0.0)
        config = public_config(self._checkpoint.config, self._spec)
        generation = self._generation_config(config)
        self._ids = special_ids(config, generation, self._spec.vocab_size)
        self._texts |= {
            "config.json": to_json(config),
            "generation_config.json": to_json(generation),
            "genai_config.json": to_json(
                genai_config(self._spec, self._recipe, self._ids, generation)
            ),
        }
        if "special_tokens_map.json" not in self._texts:
            settings = self._text_object("tokenizer_config.json")
            self._texts["special_tokens_map.json"] = to_json(special_tokens(settings))
        for name, data in self._texts.items():
            (self._folder / name).write_bytes(data)
        if self._recipe.target.openvino:
            self._write_openvino_tokenizer()

    def _write_openvino_tokenizer(self) -> None:
        from edgerun_export.openvino_ir.check import tokenizer_differences
        from edgerun_export.openvino_ir.tokenizer import write_tokenizer

        write_tokenizer(self._folder, self._tokenizer, padding_id(self._ids))
        texts = tokenizer_differences(self._folder, self._texts["tokenizer.json"].decode())
        if texts:
            self._warnings.append(
                f"openvino-genai cuts {len(texts)} of the sample texts differently from "
                f"tokenizer.json, for example {texts[0]!r}; give it token ids where that matters"
            )

    def _generation_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The checkpoint's own, or what its configuration implies."""
        if "generation_config.json" in self._texts:
            return self._text_object("generation_config.json")
        settings = self._text_object("tokenizer_config.json")
        return implied_generation(config, settings, self._tokenizer)

    def _text_object(self, name: str) -> dict[str, Any]:
        return parse_object(name, self._texts.get(name, b"{}"))

    def _measure(self) -> None:
        """Compares with the source: when asked to, and when the format surely did damage."""
        formats = two_bit_formats(self._recipe, self._spec)
        damaging = formats and not self._weights.natively_ternary()
        if not (self._options.verify or damaging):
            return
        self._progress("verify", 0.0)
        ids = sample_ids(self._spec, self._texts["tokenizer.json"])
        if self._options.verify:
            openvino = self._recipe.target.openvino
            report = verify(self._folder, self._spec, self._weights, ids, openvino=openvino)
            self._quality.update(report.as_dict())
        else:
            divergence = damage(self._folder, self._spec, self._weights, ids)
            self._quality["kl_divergence"] = float(f"{divergence:.3g}")
        if damaging and self._quality["kl_divergence"] >= _POOR_NATS:
            self._warnings.append(damage_warning(formats, self._quality))

    def _finish(self) -> ExportResult:
        self._progress("finish", 0.0)
        for path in self._folder.iterdir():
            if path.name not in self._files:
                self._files[path.name] = file_entry(path)
        content = manifest(
            exporter=self._tools,
            spec=self._spec,
            recipe=self._recipe,
            pack=self._options.pack,
            ids=self._ids,
            source=self._options.provenance.applied(self._checkpoint.source),
            quality=self._quality,
            files=self._files,
        )
        (self._folder / MANIFEST_FILE).write_bytes(to_json(content))
        size = sum(path.stat().st_size for path in self._folder.iterdir())
        budget = self._options.calibration.budget
        self._warnings += size_warnings(size, budget, self._whole_scales)
        self._progress("finish", 1.0)
        return ExportResult(self._folder, self._recipe, content, self._warnings)
