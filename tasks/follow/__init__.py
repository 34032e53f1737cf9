"""Follow: an alias goes in, a model that goes along with it while it is called comes out."""
