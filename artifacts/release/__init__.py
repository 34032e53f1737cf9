"""The release: its record and evidence, its signed statement, and the ledger that it is in."""
