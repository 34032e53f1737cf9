"""Captures: a delivery goes in, and a row for each capture technology comes out.

`rows` fills the table; `step` captures by one method, in a process of its own, and compares what
that gives with the original.
"""
