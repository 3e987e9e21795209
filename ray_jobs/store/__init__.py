"""Layer 2: the run folder and the data sets in it."""
