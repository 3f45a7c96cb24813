"""Seeing a run: clocks on every rank, figures gathered on rank 0, and where they are shown and kept."""
