"""Command line: one module per group of commands, and the driver of a submitted run."""

import gc

gc.set_threshold(10_000, 20, 50)  # the default takes a tenth of the imports, a fifth of jobs with 10^5 sets
