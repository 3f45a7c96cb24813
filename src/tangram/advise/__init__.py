"""Asks planners again and puts the answers side by side, or in words."""
