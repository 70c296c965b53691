"""Audits that try to refute the privacy claim, on the code as it is installed; `dpscale selftest` runs the quick ones.

`laws` looks at the noise that was really added, `stability` at how far one record moves what is measured, `attacks` at
what an observer of many releases can tell, `composition` at a finished run and its ledger. An audit that finds nothing
proves little unless it would have found something, so each is also run on planted violations (`planted`).
"""
