"""Models in plain PyTorch, atom by atom: a rank builds the atoms of its stage, and of these its share."""
