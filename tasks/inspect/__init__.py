"""Inspect: a delivery that was taken in goes in, a verdict with findings comes out.

`step` asks each of the others: what the graph says, what it does, what it should give.
"""
