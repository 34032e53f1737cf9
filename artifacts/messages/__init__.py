"""Jobs and results: what flows and commands ask of steps, and what these answer."""
