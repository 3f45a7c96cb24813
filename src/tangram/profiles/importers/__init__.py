"""Readers of other tools' profiles, one module per tool; ``formats`` knows them all."""
