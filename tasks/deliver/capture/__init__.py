"""How a model becomes a graph: by torch.fx, by torch.export, and what keeps each from it."""
