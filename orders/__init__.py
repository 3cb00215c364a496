"""Orders: the checkout that places them, and the lab that tries to break it."""
