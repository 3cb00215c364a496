"""Process liveness: guarded locks of a killed process are released by another process of its host, at once.

files     the file of each process, and whether it lives
release   who looks at them, and releases what the dead have left
"""
