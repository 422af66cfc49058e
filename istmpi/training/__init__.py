"""The round loop, a whole run in its folder, a comparison of several runs, and a measurement of the
cluster."""
