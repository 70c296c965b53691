"""Audits that try to refute the privacy claim of the installed code; `dpscale selftest` runs the quick ones.

`selftest` tests the noise that is added and how far one record moves the measurements, and bounds the information of an
observer of many releases. An audit without findings is convincing only if it detects violations, so each one is also
run on planted violations.
"""
