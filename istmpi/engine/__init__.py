"""The positions that each rank has of every parameter, and how they move from one layout to the next."""
