"""Layer 3: Ray itself: connecting, replicas, leases."""
