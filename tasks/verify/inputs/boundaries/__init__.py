"""Boundaries: inputs on both sides of where a graph decides, by its constants and operators.

`tracing` runs the model once and notes what it does to its inputs, element by element, up to where
something is decided; `targets` says which values an operator decides at; `placing` finds the inputs
that lead there; `cases` makes named cases of them.
"""
