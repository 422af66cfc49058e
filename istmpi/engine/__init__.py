"""Layouts and transfers. A layout gives the positions of a parameter that each rank has, as owner
between rounds or as holder, which trains them in a round. A transfer moves values from one layout
to another."""
