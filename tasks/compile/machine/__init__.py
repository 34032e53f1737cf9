"""The machine that is compiled for: its vector instructions, and a GPU that is here."""
