"""Layer 1: the configuration tree, its checks, and the bill of a run."""
