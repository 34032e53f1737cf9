"""Torch versions: a package in versions of torch that didn't build it, in an environment each."""
