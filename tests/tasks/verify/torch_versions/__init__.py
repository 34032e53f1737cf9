"""Packages in other versions of torch."""
