"""The tests; their folders mirror the apps."""
