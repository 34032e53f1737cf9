"""The delivery: its contract, where it lies, what its inputs and outputs are."""
