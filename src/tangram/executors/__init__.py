"""Where errands run: in this process, in processes of this machine, or on a Ray cluster.

An errand is one function, put to many independent items. Whoever hands one out gets its results in the order
of the items, so where it ran changes nothing but the time; workers that die cost what they had in hand.
"""
