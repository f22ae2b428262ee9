"""Watchdog."""
