"""What `tasks.traceability` is made of: what a graph says, what it does, what it should give."""
