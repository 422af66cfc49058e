"""Layouts: the positions of every parameter that a rank has, as their owner between rounds, or as a holder that trains
them in a round; and transfers from one layout to another."""
