"""The command line: one file for the commands of a kind, in a group that imports late."""
