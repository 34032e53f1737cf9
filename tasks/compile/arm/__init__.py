"""Arm: AOTInductor packages for ARM64, compiled on x86-64 and run there under emulation.

`sysroot` is where ARM64's libraries lie and which tools go with them, `cross_compilation` lets
Inductor compile with these, and `emulation` says how a program for ARM64 is started here.
"""
