"""What the race understands of SQL."""

from __future__ import annotations

import pytest

from inventory.racing.statements import parse


@pytest.mark.parametrize(
    ("sql", "reads", "writes"),
    [
        (
            'SELECT "shop_book"."stock" FROM "shop_book" WHERE "shop_book"."id" = %s FOR UPDATE',
            {"shop_book"},
            "",
        ),
        (
            "SELECT a FROM `book` INNER JOIN `level` ON (`book`.`id` = `level`.`book_id`)",
            {"book", "level"},
            "",
        ),
        ('(SELECT 1 AS "a" FROM "public"."book")', {"book"}, ""),
        ('UPDATE "book" SET "stock" = %s WHERE "book"."id" = %s', set(), "book"),
        ("update only public.book as b set stock = stock - 1", set(), "book"),
        (
            'WITH taken AS (UPDATE "book" SET "stock" = "stock" - 1 RETURNING id) SELECT * FROM taken',
            set(),
            "book",
        ),
        ('INSERT INTO "sale" ("book_id") VALUES (%s)', set(), "sale"),
        ("INSERT OR IGNORE INTO sale VALUES (1)", set(), "sale"),
        ('DELETE FROM "basket" WHERE id IN (SELECT id FROM "line")', set(), "basket"),
        ('SAVEPOINT "s1"', set(), ""),
    ],
)
def test_tables(sql, reads, writes):
    """Those that are read, and the one that is written; FOR UPDATE writes nothing."""
    assert parse(sql)[:2] == (reads, writes)


def test_new_values():
    """Each column has the parameter that it is set to, None where the database computes."""
    sql = 'UPDATE "book" SET "title" = %s, "stock" = GREATEST(("stock" - %s), %s), "by" = %s WHERE "id" = %s'
    assert parse(sql, ("Emma", 1, 0, None, 7)).sets == (("title", "Emma"), ("stock", None), ("by", "None"))
