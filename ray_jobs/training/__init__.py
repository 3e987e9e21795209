"""Layer 3: samples to checkpoints with Ray Train."""
