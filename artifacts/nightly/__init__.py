"""The night: its record, and its rows while it goes on."""
