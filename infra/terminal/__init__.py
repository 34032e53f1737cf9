"""What a person at a terminal sees: tables, progress, quantities."""
