"""Computing in int8: which layers can, what their inputs hold, how much it moves, and the rewrite.

`layers` finds the layers, chooses a range for each tensor and says what each layer alone would do
to the outputs; `rewriting` puts oneDNN's int8 operators in their places.
"""

# The passes and this room take of each other; begun there, each finds what it needs.
import handoff.tasks.optimize.passes  # noqa: F401
