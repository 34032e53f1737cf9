"""The parts of the mechanical blessing: its program, its inputs, its child processes."""
