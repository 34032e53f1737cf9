"""The inputs that a model is compared on, and that other steps run it on.

`plan` names the cases and draws them, `special` puts in what compilers get wrong, `boundaries`
finds where the graph itself decides, and `planner` gives them in order, as far as memory and time
allow.
"""
