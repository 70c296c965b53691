"""Command `wizard`: a page on this machine that leads from data to a reviewed domain file and a job file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from dpscale.cli.check import format_options, read_origin
from dpscale.cli.group import main


@main.command()
@click.argument("data")
@click.option("--no-browser", is_flag=True, help="Print the address alone; open no browser.")
@click.option(
    "--minutes", type=click.IntRange(min=1), default=60, show_default=True, help="Stop after so long without a request."
)
@format_options
def wizard(data: str, no_browser: bool, minutes: int, **written: Any) -> None:
    """Lead from data to a domain file and a job file in a page of this machine. The page is PRIVATE.

    It shows the draft of `domain sketch`, and the errors of `plan` while the budget changes. It writes both files into
    the current folder, releases nothing and sends nothing anywhere.
    """
    import webbrowser

    from dpscale.cli.wizard.guide import Guide
    from dpscale.cli.wizard.server import WizardServer
    from dpscale.records.sketch import WARNING, make_sketch

    click.echo(WARNING, err=True)
    origin = read_origin(data, written)
    guide = Guide(
        sketch=make_sketch(data, origin.dialect, origin.format), data=data, written=written, folder=Path.cwd()
    )
    with WizardServer(guide) as server, suppress(KeyboardInterrupt):
        click.echo(f"open this address, which works once: {server.address}")
        click.echo(f"it ends with Finish in the page, Ctrl-C, or {minutes} minutes without a request")
        if not no_browser:
            webbrowser.open(server.address)
        click.echo(server.run(60 * minutes))
