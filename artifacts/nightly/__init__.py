"""The night: its record, its rows while it goes on, and what a survey finds."""
