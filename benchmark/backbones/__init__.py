"""Networks with named stages; one file per family."""
