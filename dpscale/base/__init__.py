"""Errors, safe representations of values, and the parallel-map protocol; imports no other package."""

VERSION = "0.2.0"  # of the project; docs/compatibility.md lists the formats of each version
