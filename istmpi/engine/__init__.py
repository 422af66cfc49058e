"""Who has which positions of every parameter, and how they move from one layout to the next."""
