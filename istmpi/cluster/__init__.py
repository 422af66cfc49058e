"""The speed of a cluster: measured, kept in a file, and applied to the counts of `istmpi.cost`."""
