"""Timing: packages and eager, call by call in turns, with an interval."""
