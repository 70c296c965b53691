"""Entry point of the command line. Each module imported here adds its commands."""

from dpscale.cli import check, domains, job, ledger, outputs, plan, run, sql, wizard
from dpscale.cli.group import main

__all__ = ["check", "domains", "job", "ledger", "main", "outputs", "plan", "run", "sql", "wizard"]

if __name__ == "__main__":
    main()
