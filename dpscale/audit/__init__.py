"""Audits that try to refute the privacy claim of the installed code; `dpscale selftest` runs the quick ones.

`noise_and_stability` tests the noise that is added and how far one record moves the measurements, `attacks` bounds the
information of an observer of many releases, `composition` compares a finished run with its ledger. An audit without
findings is convincing only if it detects violations, so each one is also run on planted violations (`selftest`).
"""
