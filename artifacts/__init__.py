"""Nouns: value types, file formats and stores. They import no other room."""
