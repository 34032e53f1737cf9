"""The registry: what changes a model's ledger or reads the store, a step each.

`draft`, `sign` and `commit` make an entry, `upload`, `pull` and `restore` move what it is about,
`assemble` makes the record of what the other steps found out.
"""
