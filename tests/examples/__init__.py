"""Tests of the example models."""
