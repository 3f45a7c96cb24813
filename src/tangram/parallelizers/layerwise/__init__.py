"""Stages whose atoms have strategies of their own, all slices of a portion at once."""
