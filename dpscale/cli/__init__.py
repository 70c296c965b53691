"""Jobs: the job file, the run directory, the stages, the release and the command line.

A run directory holds all that a stage needs, so every stage can be called alone, from a shell, a DAG or Python, and a
stage that is already done returns at once.
"""
