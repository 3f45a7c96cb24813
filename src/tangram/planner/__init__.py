"""The search: from islands and tables to the best pipeline, and how it is proven and explained."""
