"""Readers of files, one for each kind of file; they check what they read."""
