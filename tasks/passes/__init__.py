"""Graph passes, one file a pass."""
