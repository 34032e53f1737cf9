"""Computing in int8: which layers can, what their inputs hold, how much it moves, and the rewrite.

`observing` chooses a range for each tensor, `layers` finds the layers and says what each one alone
would do to the outputs, `rewriting` puts oneDNN's int8 operators in their places.
"""
