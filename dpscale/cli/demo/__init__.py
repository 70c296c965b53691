"""The demo: the RAND health insurance experiment (20,190 person-years, ships with statsmodels), as partitioned Parquet.

It runs the main job, and ends by telling which attribute sets are answered worst and best.
"""

from dpscale.cli.demo.randhie import run_demo

__all__ = ["run_demo"]
