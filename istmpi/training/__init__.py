"""Training: the round loop, a whole run in its folder, a comparison of several, a measurement of the cluster."""
