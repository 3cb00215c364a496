from tests.serving import server

__all__ = ["server"]
