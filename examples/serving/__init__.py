"""Servers around `handoff.follow`: several processes, batches, health and metrics."""
