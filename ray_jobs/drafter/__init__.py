"""Layer 2: the EAGLE-3 drafter in torch, and the layout that servers load."""
