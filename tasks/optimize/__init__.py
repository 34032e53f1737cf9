"""Optimize: a delivery's graph goes in; the program to compile, and the reference's, come out.

`step` applies the recipe's `passes`, each checked, with the capture between the two levels;
`kernels` are operators of our own that passes put in.
"""
