"""One run: built, trained round by round, evaluated and recorded."""
