"""Helpers that know nothing of locks: the clock, back-off, background threads, databases."""
