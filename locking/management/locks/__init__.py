"""The parts of `manage.py locks`, one verb a module."""
