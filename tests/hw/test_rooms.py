"""What runs on a board is told by its folder, and needs nothing that a board lacks."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

# The oldest Python on a board's image, and what the standard library has gained since.
BOARD_PYTHON = (3, 10)
NEWER = {"tomllib"}
STANDARD = sys.stdlib_module_names - NEWER
ROOMS = {
    "overlay": {"numpy", "edgerun_hw.overlay"},
    "board_side": {"numpy", "pynq", "edgerun_hw.overlay", "edgerun_hw.board_side"},
    "deploy/broker": {"edgerun_hw.deploy.broker"},
}
PACKAGE = Path(__file__).parents[2] / "hw/edgerun_hw"


def foreign_imports(source: str, package: str, allowed: set[str]) -> list[str]:
    """Modules that a source imports anywhere and that are neither allowed nor standard."""
    names = []
    for node in ast.walk(ast.parse(source, feature_version=BOARD_PYTHON)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package if node.level else ""
            names.append(".".join(filter(None, (base, node.module))))
    own = tuple(f"{name}." for name in allowed)
    return [
        name
        for name in names
        if name.split(".")[0] not in STANDARD and not f"{name}.".startswith(own)
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_what_runs_on_a_board_imports_only_what_a_board_has(room):
    files = sorted((PACKAGE / room).rglob("*.py"))
    assert len(files) > 5
    package = f"edgerun_hw.{room.replace('/', '.')}"
    foreign = {
        f"{file.relative_to(PACKAGE)}: {name}"
        for file in files
        for name in foreign_imports(file.read_text(), package, ROOMS[room])
    }
    assert foreign == set()


@pytest.mark.parametrize(
    "source",
    [
        "import edgerun",
        "from edgerun.errors import InputError",
        "def late():\n    import tomllib",
        "from edgerun_hw import simulate",
        "from edgerun_hw.overlays import driver",
        "from numpy_extras import array",
    ],
)
def test_foreign_imports_are_seen(source):
    assert foreign_imports(source, "edgerun_hw.overlay", ROOMS["overlay"])


def test_a_boards_worker_loads_nothing_of_edgerun():
    code = (
        "import sys; import edgerun_hw.overlay.driver, edgerun_hw.board_side.worker\n"
        "bad = [m for m in sys.modules if m == 'edgerun' or m.startswith('edgerun.')]\n"
        "sys.exit(repr(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_no_folder_holds_more_than_sixteen_modules():
    folders = {file.parent for file in PACKAGE.rglob("*.py")}
    modules = {
        str(folder.relative_to(PACKAGE)): len(set(folder.glob("*.py")) - {folder / "__init__.py"})
        for folder in folders
    }
    assert {folder: count for folder, count in modules.items() if count > 16} == {}
