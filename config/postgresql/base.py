"""Django's PostgreSQL, which doesn't ask a kept connection whether it works where its socket tells."""

from django.db.backends.postgresql import base

from inventory.statements import is_silent


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection that is silent is taken for a living one.

    Django asks the server when the transaction begins: under the lock, while others wait for it. Behind a
    request in which a statement failed it asks at once, for a request that may come much later.
    """

    health_check_done: bool

    def close_if_health_check_failed(self) -> None:
        """Ask the server at a request's first use, unless nothing has come since the last answer."""
        self.health_check_done = self.health_check_done or is_silent(self)
        super().close_if_health_check_failed()

    def close_if_unusable_or_obsolete(self) -> None:
        """Close a connection behind a request if need be; the next request looks at it by itself."""
        super().close_if_unusable_or_obsolete()
        self.health_check_done = False
