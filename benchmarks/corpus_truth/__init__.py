"""Run inside a base's container: resolve what source files use of a package in a real interpreter of one tree.

Nothing here knows the tool under test, or shares code with it: standard library only, one interpreter, real objects.
"""
