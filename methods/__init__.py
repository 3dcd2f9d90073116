"""One file per method; each registers itself with one decorator."""
