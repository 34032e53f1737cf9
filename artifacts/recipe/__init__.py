"""The recipe: what is asked for: targets, passes, tolerances, options."""
