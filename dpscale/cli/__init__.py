"""Command line: one module per group of commands, and the driver of a submitted run."""
