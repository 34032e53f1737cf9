"""Propose: a bare `to_folder` folder goes in, a contract that it may have comes out.

`step` reads hints off its layers, `try_contract` sees the model run as declared.
"""
