"""The tests; their folders mirror the apps."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # of the project
