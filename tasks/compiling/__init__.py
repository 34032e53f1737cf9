"""What `tasks.compile` is made of: what it makes Inductor emit, and what it finds in the result."""
