"""The engines behind a lock; each keeps the contract of `locking.backends.base`."""
