"""Digest of a job, by which the ledger refuses a second release of the same job.

The digest of version 2 has the paths of a job relative to its folder, that of version 1 has them absolute. Both have
the names and the form that jobs had when version 2 began, so that no released job gets another digest.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dpscale.domain import Domain
from dpscale.job.data import identity_of, mapped
from dpscale.job.forms import without_budget
from dpscale.job.job import Job
from dpscale.job.search_budget import SHARE
from dpscale.job.sections import LIMITS

DIGEST_VERSION = 2  # of new releases
FORMER_NAMES = {"allow_weak_privacy": "careless"}  # keys of [privacy]
EXPLICIT_DEFAULTS = {"errors": "auto", "agree": False}  # of [reconstruct], also of a job that omits them


def former_content(job: Job) -> dict[str, Any]:
    """Return the content of a job as it was when version 2 of the digest began, without words for readers."""
    content = without_budget(job.to_dict(), [one.called for one in job.link])
    content.pop("about", None)
    return content


def job_digest(job: Job, domain: Domain | None = None, version: int = DIGEST_VERSION) -> str:
    """Return the SHA-256 that identifies a job: of its settings, without scheduler and limits, and of its domains.

    `former_content` is the content in the sections of earlier versions, because digests of released jobs must stay.
    Settings that do not change the release, such as limits of the engine, are left out.

    Parameters
    ----------
    job : Job
    domain : Domain, optional
        Domain of the only table, whose digest also leaves out settings that may change without cost.
    version : int
    """
    content = former_content(job)
    content["privacy"] = {FORMER_NAMES.get(key, key): value for key, value in content["privacy"].items()}
    content["privacy"].pop("analyst", None)  # two analysts do not release one job twice
    for setting in LIMITS:
        content["engine"].pop(setting, None)
    if domain is not None:
        content.pop("synthesize", None)
        content.get("time", {}).pop("changed", None)  # may be accepted later, for a legal erasure
        content["reconstruct"] = EXPLICIT_DEFAULTS | content["reconstruct"]
        if "discover" in content:
            content["discover"] = {"share": SHARE} | content["discover"]

    stated = identity_of(content, job.places) if version > 1 else mapped(content, job.former)
    domains = [declared.digest for declared in job.declared.values()] if domain is None else domain.digest
    return hashlib.sha256(json.dumps([stated, domains], sort_keys=True).encode()).hexdigest()
