"""Graphical models: junction trees, messages in logarithms, and the model of largest entropy nearest to measurements.

Mathematics alone: arrays in, arrays out; no file, no Dask, no count.
"""
