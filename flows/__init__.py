"""Sentences: the order of the steps, and their policy, as Prefect flows."""
