"""Graphs: the families by name, how one is drawn, and the files from which one is read."""
