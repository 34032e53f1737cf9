"""What the compiler wrote, read before it is compiled, and what a package holds in the end."""
