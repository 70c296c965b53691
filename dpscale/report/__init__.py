"""The HTML report of a run: what was asked, what it cost, how large the errors are. Reads no record and no count."""

from dpscale.report.page import run_report

__all__ = ["run_report"]
