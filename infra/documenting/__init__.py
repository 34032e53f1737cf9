"""The documents: what of them is generated, and how the site is built."""
