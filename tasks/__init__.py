"""Verbs: the steps of a release as pure functions, each run in a child process."""
