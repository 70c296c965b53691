"""Execution engines. This is the only package that imports Dask.

Numerical packages receive a parallel map `each(function, items)`. An engine provides one that runs on threads,
processes, the calling thread or a cluster. The results are the same bytes on each.
"""
