"""From a cart to an order: reserving and selling."""
