"""The demo's login, which is public: it opens nothing outside DEBUG."""

from typing import Any, Final

from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.base_user import AbstractBaseUser
from django.http import HttpRequest

PASSWORD: Final = "admin"  # noqa: S105 - it is no secret


class DemoAwareBackend(ModelBackend):
    """Django's own, which outside DEBUG refuses the password of the demo's user, no matter who has it.

    A database that was once seeded as a demo may become a deployment's.
    """

    def authenticate(  # type: ignore[override] # its stubs name a user model of their own
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **others: Any,
    ) -> AbstractBaseUser | None:
        """Return the user, or None."""
        if password == PASSWORD and not settings.DEBUG:
            return None
        return super().authenticate(request, username, password, **others)
