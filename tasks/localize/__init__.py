"""Localize: a refused package goes in, where and why its numbers are wrong comes out.

`step` searches within a budget of compiles; `trials` compiles and runs parts of the program in a
child process (`trial`), `search` makes the parts smaller, `causes` leaves parts of the compiler
out, `verdict` and `script` present it to people.
"""
