"""Models to try Handoff with."""
