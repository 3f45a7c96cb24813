"""Measured runs: reading them, predicting them, and saying how far the predictions are off."""
