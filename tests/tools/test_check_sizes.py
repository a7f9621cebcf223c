"""What has grown too large is named, and nothing else."""

from __future__ import annotations

from pathlib import Path

from tools.ci.check_sizes import too_large


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def function(lines: int) -> str:
    return "async def f():\n" + "    pass\n" * (lines - 1)


def test_the_largest_that_is_allowed_passes(tmp_path: Path) -> None:
    write(tmp_path / "edgerun" / "long.py", "x = 1\n" * 400)
    write(tmp_path / "hw" / "notes.md", "x\n" * 500)
    for number in range(16):
        write(tmp_path / "tests" / f"test_{number}.py", function(60))
    assert not list(too_large(tmp_path))


def test_files_functions_and_folders_that_are_larger_are_named(tmp_path: Path) -> None:
    write(tmp_path / "hw" / "rtl" / "long.sv", "x\n" * 401)
    write(
        tmp_path / "edgerun" / "cli" / "long.py",
        f"if True:\n {function(61)}".replace("\n    ", "\n     "),
    )
    for number in range(17):
        write(tmp_path / "tests" / f"test_{number}.py", "")
    assert list(too_large(tmp_path)) == [
        "edgerun/cli/long.py: f has 61 lines, limit 60",
        "hw/rtl/long.sv: 401 lines, limit 400",
        "tests: 17 files, limit 16",
    ]
