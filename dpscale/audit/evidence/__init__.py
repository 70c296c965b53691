"""An evidence bundle: a folder by which an auditor checks a release without us, our machine or the data.

`draws` reads off a run what was drawn, `bundle` writes the folder, `checklist` the answers of a run to the usual
questions, `signing` puts a curator's key under it. `recompute` is of the standard library alone and lies in every
bundle; `check` adds hashes and the signature. These two share no code with the rooms that made the release.
"""
