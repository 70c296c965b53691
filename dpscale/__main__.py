"""`python -m dpscale`: the command line."""

from dpscale.jobs.cli import main

if __name__ == "__main__":
    main()
