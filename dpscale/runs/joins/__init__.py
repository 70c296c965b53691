"""Joins of the tables of a job: a run for each under `joins/`, whose rows are looked up while they are counted."""
