"""Layer 3: accepted length of a drafter."""
