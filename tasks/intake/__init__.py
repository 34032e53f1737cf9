"""Reads a `torch.fx` delivery without executing or unpickling anything that it brings."""
