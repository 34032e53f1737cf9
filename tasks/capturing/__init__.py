"""What `tasks.captures` is made of: the roads, and how what they give is judged."""
