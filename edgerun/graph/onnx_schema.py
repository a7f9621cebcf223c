"""ONNX's messages, without what else the onnx package imports."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

MODULE = "onnx_ml_pb2"


@cache
def onnx_messages() -> Any:
    """The module ``onnx.onnx_ml_pb2``, which has ``ModelProto`` and its kin.

    The package's checks and helpers would take 60 ms of every start and 10 MB, so the module is
    loaded by itself if the package has not been. Protobuf gives both the same classes.
    """
    package = None if "onnx" in sys.modules else find_spec("onnx")
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder) / f"{MODULE}.py"
        if path.is_file():
            loader = SourceFileLoader(f"{__name__}.{MODULE}", str(path))
            spec = spec_from_loader(loader.name, loader)
            assert spec is not None
            module = module_from_spec(spec)
            loader.exec_module(module)
            return module
    return importlib.import_module(f"onnx.{MODULE}")
