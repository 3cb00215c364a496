"""Locks in the memory of one process: for tests, scripts and a development server."""

from locking.backends.memory.backend import STORES, AsyncMemoryWaiter, MemoryBackend, MemoryWaiter, Store

__all__ = ["STORES", "AsyncMemoryWaiter", "MemoryBackend", "MemoryWaiter", "Store"]
