"""Graphical models: junction trees, messages in logarithms, and maximum-entropy models nearest to measurements.

Pure functions of arrays, without files, Dask or counts.
"""
