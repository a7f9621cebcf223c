"""The text model of a checkpoint that has parts for pictures or sound beside it.

Such a ``config.json`` has the keys of the text model in ``text_config``, without those whose values
are the defaults of transformers' configuration class (``configuration_utils.py``,
``SubConfigSpec.create_subconfig``), and tensors have names of their own. Where the positions of all
axes are equal and no embedding comes from a picture, each of these computes what its text model
does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun.values import shown
from edgerun_export.architectures.decoder.biases import with_stored_biases
from edgerun_export.architectures.decoder.fields import section
from edgerun_export.architectures.decoder.missing import reason
from edgerun_export.architectures.decoder.spec import Config, DecoderSpec
from edgerun_export.architectures.decoder.storage import HEAD_WEIGHT, Storage
from edgerun_export.architectures.decoder.usual_texts import USUAL

PICTURES = "its parts for pictures are left out"
PICTURES_AND_SOUND = "its parts for pictures and sound are left out"

_TEXT = "text_config"
_TIED = ("tie_word_embeddings", "tie_embedding")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, slots=True)
class Layout:
    """How the tensors are named.

    Attributes:
        text: what stands in the place of ``model.`` in names of the text model.
        others: how the names of the parts begin that are left out.
        head: name of the head's weight.
    """

    text: str
    others: tuple[str, ...]
    head: str = HEAD_WEIGHT

    @property
    def layers(self) -> str:
        """How the names of the text model's layers begin."""
        return f"{self.text}layers."

    def is_of(self, tensors: Collection[str]) -> bool:
        """Whether any layer of the text model is named so."""
        return any(name.startswith(self.layers) for name in tensors)

    def applied(self, storage: Storage) -> Storage:
        """How the text model is stored, by how it would be if it were all there is."""
        placed = replace(storage, prefix=self.text, head=self.head)
        own = map(placed.placed, storage.unused)
        return replace(placed, unused=(*own, *self.others))


@dataclass(frozen=True, slots=True)
class Multimodal:
    """An architecture whose text model is one that is described elsewhere.

    Attributes:
        texts: by the ``model_type`` of ``text_config`` what describes the text model; the first is
            the one of a ``text_config`` that names none.
        layouts: how tensors may be named; the first is the one of most checkpoints.
        tied: whether head and embedding are one, where no key says it.
        left_out: what an export says about the other parts.
        is_flat: whether ``config.json`` may have the keys of the text model itself.
    """

    texts: Mapping[str, Callable[[Config], DecoderSpec]]
    layouts: tuple[Layout, ...]
    tied: bool = False
    left_out: str = PICTURES
    is_flat: bool = False

    def describe(self, name: str, config: Config, tensors: Collection[str] = ()) -> DecoderSpec:
        """Describes the text model.

        Args:
            name: the architecture.
            config: keys of config.json.
            tensors: names of the checkpoint's tensors; none where they are not known yet.

        Raises:
            CheckpointError: a key of config.json is missing or out of range, or the text model is
                named otherwise.
            UnsupportedError: the text model is of another architecture, or config.json asks for a
                variant without an implementation.
        """
        text = self.text_keys(name, config)
        layout = self._layout(name, tensors)
        text |= dict.fromkeys(_TIED, self._is_tied(config, layout.head in tensors))
        # It concerns all parts, so it stands beside them.
        text["quantization_config"] = config.get("quantization_config") or text.get(
            "quantization_config"
        )
        spec = self.texts[text["model_type"]](text)
        storage = layout.applied(spec.storage)
        spec = with_stored_biases(spec, text, {storage.unplaced(each) for each in tensors})
        has_others = any(each.startswith(layout.others) for each in tensors)
        return replace(
            spec,
            architecture=name,
            storage=storage,
            notes=(*spec.notes, self.left_out) if has_others else spec.notes,
        )

    def text_keys(self, name: str, config: Config) -> dict[str, Any]:
        """The keys of a config.json that the text model would have if it were all there is.

        Raises:
            CheckpointError: there is no text model.
            UnsupportedError: it is of another architecture.
        """
        text = section(config, _TEXT)
        if not text and self.is_flat:
            own = {key: value for key, value in config.items() if not key.endswith("_config")}
            text = own | {"model_type": None}
        if not text:
            raise CheckpointError(
                f"config.json: a {name} has an object '{_TEXT}', and there is none"
            )
        kind = text.get("model_type")
        kind = next(iter(self.texts)) if kind is None else kind
        if not isinstance(kind, str) or kind not in self.texts:
            raise UnsupportedError(
                f"architecture '{name}' with a text model of {shown(kind)} is not supported"
                f"{reason(kind)}; supported text models of it are: {', '.join(self.texts)}"
            )
        # Which tokens end a text is said beside the text model, in newer checkpoints of it.
        tokens = {key: config[key] for key in _TOKENS if config.get(key) is not None}
        return {**USUAL.get(kind, {}), **text, **tokens, "model_type": kind}

    def _layout(self, name: str, tensors: Collection[str]) -> Layout:
        layouts = [layout for layout in self.layouts if layout.is_of(tensors)]
        if len(layouts) == 1:
            return layouts[0]
        if not tensors:
            return self.layouts[0]
        if layouts:
            both = " and ".join(f"'{layout.layers}'" for layout in layouts)
            raise CheckpointError(
                f"the checkpoint has layers of its text model below {both}; expected one of both, "
                "so it was put together from two: download it again"
            )
        expected = " or ".join(f"'{layout.layers}'" for layout in self.layouts)
        raise CheckpointError(
            f"the checkpoint has no layers of a text model, whose names begin with {expected} in a "
            f"{name}; correct config.json, or download the checkpoint again"
        )

    def _is_tied(self, config: Config, has_head: bool) -> bool:
        """Whether the head is the embedding.

        The key stands beside ``text_config`` or in it, by the version of transformers, and the one
        in the other place may be a default that was written down. A head that is stored counts
        more than ``text_config`` (transformers 5, ``modeling_utils.py``, ``tie_weights``).
        """
        stated = [
            part[key]
            for part in (config, section(config, _TEXT))
            for key in _TIED
            if part.get(key) is not None
        ]
        if has_head:
            return bool(stated and stated[0])
        return any(stated) if stated else self.tied
