"""Eagle Ray: trains EAGLE-3 speculative-decoding drafters for reasoning models, as one Ray application."""
