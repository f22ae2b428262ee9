"""Configurations: experiments as written, their checks, and a catalogue of names."""
