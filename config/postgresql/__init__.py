"""The database engine of `DATABASES`: Django's for PostgreSQL, with one question less."""
