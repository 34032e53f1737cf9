"""Conformance: which operators a toolchain gets wrong, and the tables of the locked one."""
