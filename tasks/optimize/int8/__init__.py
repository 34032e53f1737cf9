"""Computing in int8: which layers can, what their inputs hold, how much it moves, and the rewrite.

`layers` finds the layers, chooses a range for each tensor and says what each layer alone would do
to the outputs; `rewriting` puts oneDNN's int8 operators in their places.
"""
