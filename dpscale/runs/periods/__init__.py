"""Run of a growing table: a release of each period under one charge.

    job.toml  domain.toml  period.toml  manifest.json  plan/  periods/2026-01/  report.html
    periods/2026-01/           values drawn for the period, a run of their own (`period`)
    periods/2026-01/cumulative/ answers of one kind at the period (`answers`): measurements/, answers/, synthetic/

The cost of the whole horizon is reserved on the ledger before the first draw. Each period has a fresh noise key, which
is destroyed when its values are on disk. The values of period t are  K Σ_{s ≤ t} R[t, s] x_s + noise, so the records of
earlier periods are read again, in one pass. Their hashes, keyed by `periods.key`, show whether they changed. The key
for hashes draws no noise; it lives until the run ends.

Threat model. After a period closes, nobody can recompute its noise. Records on the disk of the owner are as secret as
before. A reader of `periods.key` can test a guess of all records of a period, and nothing else. Sealed exact counts
are not stored: R is invertible, so a live noise key and the published values would give the exact counts of every
period.
"""
