"""Predicts time and memory of a stage. See ``docs/architecture.md`` for what the formulas rest on."""
