"""Entry point of the command line. Each module imported here adds its commands."""

from dpscale.cli import check, job, ledger, outputs, plan, run, wizard
from dpscale.cli.group import main

__all__ = ["check", "job", "ledger", "main", "outputs", "plan", "run", "wizard"]

if __name__ == "__main__":
    main()
