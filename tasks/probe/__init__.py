"""Probe: a package goes in, the mechanical verdict comes out: it is called without Python.

`step` calls and ill-treats it by the C++ runner, `measure` times it there.
"""
