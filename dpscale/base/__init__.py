"""Errors, safe representations of values, and the parallel-map protocol; imports no other package."""
