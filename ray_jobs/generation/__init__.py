"""Layer 3: prompts to samples with Ray Data."""
