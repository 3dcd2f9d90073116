"""What the suite costs, measured on this machine against what people write by hand."""
