"""The law of the suite: specs and plans, the one federated loop, and the result store."""
