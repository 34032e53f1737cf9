"""What `tasks.optimize` is made of: snapshots, the numeric check of a pass, where it went wrong."""
