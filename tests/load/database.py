"""A connection to the tests' database that owes nothing to Django's."""

import psycopg
from django.db import connection


def connect() -> psycopg.Connection:
    """Open one."""
    parameters = connection.get_connection_params()
    return psycopg.connect(
        host=parameters.get("host"),
        port=parameters.get("port"),
        user=parameters.get("user"),
        password=parameters.get("password"),
        dbname=parameters["dbname"],
        autocommit=True,
    )
