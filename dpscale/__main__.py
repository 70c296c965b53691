"""Entry point of the command line. Each module imported here adds its commands."""

from dpscale.cli import domains, job, ledger, outputs, releases, run, tables
from dpscale.cli.group import main

__all__ = ["domains", "job", "ledger", "main", "outputs", "releases", "run", "tables"]

if __name__ == "__main__":
    main()
