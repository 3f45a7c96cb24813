"""What to train on: the GPU catalogue, readers of clusters, and islands."""
