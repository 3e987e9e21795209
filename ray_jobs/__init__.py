"""Eagle Ray: trains EAGLE-3 speculative-decoding drafters for reasoning models, as one Ray application."""

import os

# Read by OpenMP when torch is first imported, so it has to stand here. By default idle threads spin for milliseconds
# between two products, which stops every other process on a machine whose cores are shared (a decode step of the
# embedded server took 1.8 s instead of 0.14 s beside a trainer).
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
