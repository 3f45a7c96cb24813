"""The planner in the manner of Galvatron: a strategy for every layer, chosen by a knapsack over layers and
memory, and cuts into stages chosen by a second programme. docs/parallelizers.md says what is searched.
"""
