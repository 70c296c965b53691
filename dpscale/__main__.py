"""`python -m dpscale`: the command line."""

from dpscale.cli.commands import main

if __name__ == "__main__":
    main()
