"""``python -m edgerun_export SRC -o OUT`` is ``edgerun export SRC -o OUT``, also uninstalled."""

import sys

import typer

from edgerun.errors import EdgerunError, InputError
from edgerun_export.cli import register

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    register(app)
    try:
        app()
    except EdgerunError as error:
        sys.stderr.write(f"edgerun_export: {error}\n")
        sys.exit(2 if isinstance(error, InputError) else 1)
