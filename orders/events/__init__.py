"""What the shop publishes: an outbox, and the relay that delivers it."""
