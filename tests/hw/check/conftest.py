"""Runs commands of ``edgerun fpga``."""

import pytest
from typer.main import get_command

from edgerun.cli import main
from edgerun_hw import cli


@pytest.fixture
def run(capsys):
    """Runs a command as ``edgerun fpga`` does; returns exit code, stdout and stderr."""
    group = get_command(cli.command_group())

    def invoke(*arguments):
        code = 0
        try:
            with group.make_context("edgerun fpga", list(map(str, arguments))) as context:
                group.invoke(context)
        except Exception as error:
            code = main._report(error)
        return (code, *capsys.readouterr())

    return invoke
