"""The job file: its sections, their defaults and the checks that need no data."""

from dpscale.job.job import Job, job_content, job_sentence

__all__ = ["Job", "job_content", "job_sentence"]
