"""What `tasks.localize` is made of: subgraphs, trials, measures, lines, and the script."""
