"""The job file: its sections, their defaults and the checks that need no data."""

from dpscale.job.job import TableJob, job_content, job_sentence

__all__ = ["TableJob", "job_content", "job_sentence"]
