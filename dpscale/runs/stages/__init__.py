"""Stages of a table: a module each, which the table in `runs.stage` names."""
