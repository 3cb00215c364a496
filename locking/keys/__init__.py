"""Names of locks: what a name may be, and the keys that make them."""
