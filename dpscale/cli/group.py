"""Root command: exit codes, one sentence on stderr, and shared options.

Exit codes: 0 done; 2 the job, domain or data is wrong; 3 the budget refuses; 70 a section of the report failed; 75 try
again. With --json a command prints one JSON object on stdout and nothing else there; progress is printed on stderr.
"""

from __future__ import annotations

import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from dpscale.base.error_redaction import no_memory
from dpscale.base.errors import DEBUG_WARNING, DpscaleError, TransientError, debugging

STOPPED = "dpscale: stopped; the same command (without --fresh) resumes, and spends nothing twice"


class _Group(click.Group):
    """Command group that turns dpscale's errors into one sentence on stderr and their exit code."""

    def invoke(self, context: click.Context) -> Any:
        if debugging():
            click.echo(f"dpscale: {DEBUG_WARNING}", err=True)
        try:
            with _quiet_threads(), _plain_warnings():
                return super().invoke(context)
        except DpscaleError as error:
            show_cause(error)
            click.echo(f"dpscale: {error}", err=True)
            context.exit(error.exit_code)
        except MemoryError as error:  # its text may reveal the number of records
            show_cause(error)
            click.echo(f"dpscale: {no_memory()}", err=True)
            context.exit(TransientError.exit_code)
        except KeyboardInterrupt:
            click.echo(STOPPED, err=True)
            context.exit(TransientError.exit_code)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print warnings as one sentence on stderr, and those of old names, which Python ignores by default."""
    with warnings.catch_warnings():
        warnings.filterwarnings("default", category=DeprecationWarning, message=".* the old name will be removed .*")
        warnings.showwarning = lambda message, *_: click.echo(f"dpscale: warning: {message}", err=True)
        yield


@contextmanager
def _quiet_threads() -> Iterator[None]:
    """Print only the type of errors in threads and destructors, which reach no caller."""
    before = threading.excepthook, sys.unraisablehook
    threading.excepthook = sys.unraisablehook = _kind_alone
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = before


def show_cause(error: BaseException | None) -> None:
    """Print the traceback of an error with its causes, if DPSCALE_DEBUG requests it."""
    if error is not None and debugging():
        click.echo("".join(traceback.format_exception(error)), err=True)


def _kind_alone(failure: Any) -> None:
    try:
        show_cause(failure.exc_value)
        if failure.exc_type is not SystemExit:
            click.echo(f"dpscale: a thread or a destructor failed with {failure.exc_type.__name__}", err=True)
    except Exception:  # out of memory
        pass


scheduler_option = click.option("--scheduler", metavar="SPEC", help="threads, processes, synchronous, tcp://…, tls://…")
fresh_option = click.option("--fresh", is_flag=True, help="Make a new release in a new directory.")
quiet_option = click.option("--quiet", is_flag=True, help="Print no progress on stderr.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


@click.group(cls=_Group)
@click.version_option(package_name="dpscale")
def main() -> None:
    """Differentially private answers to very large workloads, on Dask."""
