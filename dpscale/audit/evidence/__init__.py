"""Evidence bundles: folders by which an auditor checks a release without the data and without the curator's machine.

`draws` lists the draws of a run, `bundle` writes the folder, `checklist` answers common questions about a run, and
`signing` signs with a curator's key. `recompute` uses only the standard library and is included in every bundle;
`check` adds hashes and the signature. The last two share no code with the packages that make a release.
"""
