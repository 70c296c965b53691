"""Entry point of the command line. Each module imported here adds its commands."""

from dpscale.cli import domains, job, ledger, multitable, outputs, run, submit
from dpscale.cli.group import main

__all__ = ["domains", "job", "ledger", "main", "multitable", "outputs", "run", "submit"]

if __name__ == "__main__":
    main()
