"""Layer 3: rows, counts, failures and dropped prompts of a run as a person reads them; no Ray, no torch."""
