"""Checkpoints of Gemma that are not quite the golden ones."""

from __future__ import annotations

import json
import shutil

import pytest
from safetensors.numpy import load_file, save_file

from tests.support.bundles import GOLDEN


@pytest.fixture
def altered(tmp_path):
    """Copies a golden checkpoint, with other tensors and another configuration."""

    def make(name, tensors=lambda tensors: None, config=lambda config: config):
        folder = shutil.copytree(GOLDEN / name, tmp_path / "checkpoint")
        stored = load_file(folder / "model.safetensors")
        stored = tensors(stored) or stored
        save_file(stored, folder / "model.safetensors")
        text = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config(text)))
        return folder

    return make
