"""Wrong strategies, one for each broken idea of the lesson: the contract must catch every one."""

from contextlib import suppress
from typing import ClassVar
from uuid import uuid4

from django.db import connections, transaction

from inventory import SoldOut
from inventory.ledger import Kind, Wanted
from inventory.models import Entry, Item, Level, Movement, State
from inventory.selectors import units_for_sale
from inventory.strategies import Sale, Strategy


class Wrong(Strategy):
    name: ClassVar[str] = "wrong"
    leads: ClassVar[bool] = False


class LostUpdate(Wrong):
    """Reads, computes in Python and saves: the database refuses to have balances written."""

    def sell(self, sale: Sale) -> None:
        with sale.transaction():
            for sku, quantity in sale.lines:
                level = Level.objects.get(item__sku=sku)
                if level.available < quantity:
                    raise SoldOut([])
                Level.objects.filter(pk=level.pk).update(available=level.available - quantity)
            sale.write()


class CheckThenAct(Wrong):
    """Looks first and then writes the movement without looking again."""

    def sell(self, sale: Sale) -> None:
        there = units_for_sale([line.sku for line in sale.lines], sale.using)
        if any(there[sku] < quantity for sku, quantity in sale.lines):
            raise SoldOut([])
        with sale.transaction():
            entry = Entry.objects.create(
                cause=sale.cause, kind=Kind.SELL, fingerprint=sale.wanted.fingerprint
            )
            for sku, quantity in sale.lines:
                level = Level.objects.get(item__sku=sku)
                Movement.objects.create(
                    entry=entry,
                    level=level,
                    source=State.AVAILABLE,
                    target=State.COMMITTED,
                    quantity=quantity,
                )
            sale.write()


class NeverTakes(Wrong):
    """Writes the order and forgets the stock."""

    def sell(self, sale: Sale) -> None:
        with sale.transaction():
            sale.write()


class CommitsTheUnitsFirst(Wrong):
    """Takes in one transaction and writes in the next: a write that fails loses the units."""

    def sell(self, sale: Sale) -> None:
        with transaction.atomic(using=sale.using):
            sale.take()
        with transaction.atomic(using=sale.using):
            sale.write()


class WritesTheOrderFirst(Wrong):
    """Commits the order before it knows whether there are units."""

    def sell(self, sale: Sale) -> None:
        with transaction.atomic(using=sale.using):
            sale.write()
        with transaction.atomic(using=sale.using):
            sale.take()


class SwallowsTheRefusal(Wrong):
    """Takes what it gets and writes the order all the same."""

    def sell(self, sale: Sale) -> None:
        with sale.transaction():
            with suppress(SoldOut):
                sale.take()
            sale.write()


class RetriesUnderANewName(Wrong):
    """Gives each try a cause of its own, so a repeated request is a second sale."""

    def sell(self, sale: Sale) -> None:
        sale.wanted = Wanted(f"{sale.cause}#{uuid4()}", Kind.SELL, tuple(sale.lines))
        sale.in_transaction()


class SellsLineByLine(Wrong):
    """Commits each line by itself: a cart that is short in its last line keeps the others."""

    def sell(self, sale: Sale) -> None:
        whole = sale.wanted
        for line in sale.lines:
            sale.wanted = Wanted(f"{sale.cause}/{line.sku}", Kind.SELL, (line,))
            with transaction.atomic(using=sale.using):
                sale.take()
        sale.wanted = whole
        with transaction.atomic(using=sale.using):
            sale.write()


class AnswersBeforeTheCommit(Wrong):
    """Leaves its transaction open when it returns: the answer is given before there is an order."""

    def sell(self, sale: Sale) -> None:
        connections[sale.using].set_autocommit(False)
        sale.take()
        sale.write()


class OnlyBooks(Wrong):
    """Switches the guards off, as a superuser's script may: balances leave the ledger."""

    def sell(self, sale: Sale) -> None:
        with sale.transaction(), connections[sale.using].cursor() as cursor:
            cursor.execute("SET LOCAL session_replication_role = replica")
            for sku, quantity in sale.lines:
                if units_for_sale([sku], sale.using).get(sku, 0) < quantity:
                    raise SoldOut([])
                item = Item.objects.get(sku=sku)
                Level.objects.filter(item=item).update(available=0)
            sale.write()
