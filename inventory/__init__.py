"""Products, their stock, the ledger of every movement, and the strategies that sell from it."""
