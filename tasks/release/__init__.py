"""What a release asks of its steps, and the processes that they run in."""
