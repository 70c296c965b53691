"""Command line: one module per group of commands, and the driver of a submitted run."""

import gc

gc.set_threshold(10_000, 20, 50)  # imports and jobs with many sets create objects that live until the end
