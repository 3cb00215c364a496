"""Names of locks: the template language, the values in it, and what a name may be."""
