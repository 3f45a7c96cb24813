"""Parallelizers that are programs of their own: a user's checkout, run as a subprocess.

They show that the narrow API holds for code that was not written for it. A program gets files in its own
format, made from the cost model (and from what was measured, where profiles are given), runs under a time
limit, and its answer is read into slice plans, which are checked and re-costed like everybody's.

Effects (processes, temporary folders, the environment) are in the modules ``process`` and ``aceso``; what is
written, and how answers are read, is pure.
"""
