"""Puts what is no Python into the wheel: the default model, and the sources of the overlay."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Folders of the checkout, and where installed packages look for them.
FOLDERS = {
    "models/default/bundle": "edgerun/_default_model",
    "hw/rtl": "edgerun_hw/_hardware/rtl",
    "hw/tb": "edgerun_hw/_hardware/tb",
    "hw/boards": "edgerun_hw/_hardware/boards",
}


class DataHook(BuildHookInterface):
    """Skips editable installs, which find the folders in the checkout itself."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        for source, target in FOLDERS.items():
            folder = Path(self.root, source)
            if folder.is_dir():
                build_data["force_include"][str(folder)] = target
