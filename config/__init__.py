"""The demo project around the reusable app `locking`: settings, urls, workers and embedded services."""
