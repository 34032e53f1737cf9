"""Upkeep: a store as a whole, copied, verified, and freed of what no version needs."""
