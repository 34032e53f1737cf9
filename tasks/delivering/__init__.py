"""What `tasks.deliver` is made of: arguments, roads of capture, golden cases, the factory."""
