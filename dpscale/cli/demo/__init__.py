"""The demo: the RAND health insurance experiment (20,190 person-years, ships with statsmodels), as partitioned Parquet.

It runs the main job, and ends by its three most telling answers and the next command to type.
"""

from dpscale.cli.demo.randhie import run_demo

__all__ = ["run_demo"]
