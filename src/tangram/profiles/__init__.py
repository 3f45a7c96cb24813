"""Measured times of layers and collectives: the store, the readers of other tools' files, and the lookup."""
