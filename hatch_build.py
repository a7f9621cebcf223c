"""Puts the default model into the wheel, so that `edgerun run` works right after installation."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DefaultModelHook(BuildHookInterface):
    """Skips editable installs, which find the bundle in the checkout itself."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        bundle = Path(self.root, "models", "default", "bundle")
        if version != "editable" and bundle.is_dir():
            build_data["force_include"][str(bundle)] = "edgerun/_default_model"
