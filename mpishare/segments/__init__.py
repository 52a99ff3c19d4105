"""Segments: memory of a node that its ranks share, of several kinds behind one protocol."""
