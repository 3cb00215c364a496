"""Measurements side by side: every figure is a ratio taken in one run, on one server, in turns."""
