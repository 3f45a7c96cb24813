"""Planners of whole clusters that others published: what Tangram is compared with."""
