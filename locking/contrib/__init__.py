"""What ties `locking` to other packages; each module is imported only where its package is in use."""
