"""Layouts: which positions of every parameter each rank has; and the transfers from one layout to another.

Owners have the parameters between rounds. Holders have the units (neurons, channels) that the deal of a round gives
them to train.
"""
