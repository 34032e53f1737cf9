"""Captures: a delivery goes in, and a row for each capture technology comes out.

`step` tries one technology in a process of its own, `rows` fills the table, `roads` are the
technologies, `judging` compares what they give with the original.
"""
