"""Reports of silent wrong results, and neighbours of them, as models that are delivered.

Each is there twice where that is possible: with a declared range within which it can be served
wrong, and so must be refused, and with one that excludes it, and so must be released.
"""
