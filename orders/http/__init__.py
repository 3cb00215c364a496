"""The shop over HTTP: JSON for programs through django-ninja, pages for people."""
