"""What becomes of an order: paid, shipped, returned, cancelled or expired."""
