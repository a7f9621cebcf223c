"""Writes tests/golden/configs.json: what transformers saves of a model that is all defaults.

    python -m tools.golden.configs [--out tests/golden/configs.json]

Needs transformers (no torch), and edgerun's exporter for the names of architectures. Goldens are
tiny and state every key; these have the true sizes of each class, and the form that its version of
``save_pretrained`` gives them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING

from edgerun_export.architectures import architecture_names
from edgerun_export.architectures.decoder.usual_texts import USUAL

OTHER_PARTS = ("vision_config", "audio_config")
UNREAD = ("initializer_range", "use_cache", "attention_dropout", "transformers_version")


def saved(kind: str) -> dict[str, Any]:
    """The config.json of a ``model_type`` with all its defaults, less what nothing here reads."""
    config: dict[str, Any] = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=True))
    return {
        key: value
        for key, value in config.items()
        if key not in OTHER_PARTS + UNREAD and not key.endswith("_token_id")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("tests/golden/configs.json"))
    kinds = sorted({*architecture_names(), *USUAL} & {*CONFIG_MAPPING})
    configs = {kind: saved(kind) for kind in kinds}
    content = {"transformers": transformers.__version__, "configs": configs}
    parser.parse_args().out.write_text(json.dumps(content, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
