"""One paper's settings each."""
