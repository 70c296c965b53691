"""The job file: its sections, their defaults and the checks that need no data."""

from dpscale.job.job import Job, job_content
from dpscale.job.table_job import TableJob

__all__ = ["Job", "TableJob", "job_content"]
