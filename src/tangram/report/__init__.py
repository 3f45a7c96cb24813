"""Readers of a plan that put it on a terminal. Nothing here decides anything again."""
