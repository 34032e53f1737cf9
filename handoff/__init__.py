"""Handoff."""
