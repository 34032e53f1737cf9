"""What a model's inputs may hold, read off what the model does with them.

The model is run once under a mode that sees each ATen operator, whatever captured the graph, and
follows the inputs' elements through views, parts, casts and arithmetic to where they are looked up
in a table, compared or multiplied.
"""
