"""The package's own tests need no demo shop; they run in its settings, too, with `tests.stock.shop` added."""
