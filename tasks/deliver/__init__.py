"""Deliver: a model and its example inputs go in, a delivery and its contract come out.

`step` and `prepare` are what the training side runs; `capture` makes the graph, `ranges` says what
inputs may hold, `golden` keeps what the original gives, `builder` writes the folder.
"""
