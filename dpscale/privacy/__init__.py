"""What it costs: accounting, budget, exact noise, keyed random streams and the ledger.

Mathematics and SQLite only: no Dask, no records. `noise` draws, `streams` feeds it, `accounting` says what a draw costs,
`ledger` remembers it.
"""
