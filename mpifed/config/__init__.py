"""Configurations: experiments as written, their checks, and a catalogue of names.

The options of a section and their bounds stand in the package that uses them, as those of ``local``
in ``mpifed.local.options``.
"""
