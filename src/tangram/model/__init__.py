"""Models: what is trained, where its shapes come from, how it is cut, and how much of it there is."""
