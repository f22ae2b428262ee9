"""Experiments as written, what they must say, and what can be named in them."""
