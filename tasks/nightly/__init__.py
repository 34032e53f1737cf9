"""Nightly: what is served goes in; which models are due, and the night's record, come out."""
