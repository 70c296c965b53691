"""Evidence bundles: folders by which an auditor checks a release without the data and without the curator's machine.

Evidence is one list of records, one for every draw. `bundle` writes the list from the value files and the decisions of
a run, and the folder; `envelope` signs it. `recompute` checks the list with `sensitivities` and
`checklist`: these three use only the standard library, share no code with the writer and are included in every bundle.
`check` adds hashes and the signature.
"""
