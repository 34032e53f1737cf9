"""How the inputs of a model that came without a contract are inferred."""
