"""Families of Hugging Face configurations: which keys say the shapes, and what an absent one means."""
