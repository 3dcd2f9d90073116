"""Layers and tools that two or more methods share."""
