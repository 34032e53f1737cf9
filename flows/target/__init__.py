"""One target of a release: its package in variants, here or where its hardware is."""
