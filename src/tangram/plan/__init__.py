"""The plan document: schema, checks, JSON. Knows nothing of how plans are found."""
