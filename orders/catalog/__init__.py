"""What is for sale: products, their prices and currencies, deliveries of new ones."""
