"""Completion of ``mpifed`` in shells: a script of lists, so that no key press starts Python."""
