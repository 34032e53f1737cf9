"""What `handoff explain` says: one TOML file for each kind of code, and how to look one up."""
