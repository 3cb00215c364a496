"""The database itself announces stock that comes back, however it comes: by the ORM, an admin's SQL, a sweep."""

from django.db import migrations

CREATE = """
CREATE FUNCTION inventory_stock_came_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('inventory_stock', NEW.sku);
    RETURN NULL;
END $$;

-- Sales only lower what is available: they announce nothing, and pay for a comparison.
CREATE TRIGGER inventory_stock_came_back
    AFTER UPDATE OF on_hand, reserved, backorder_limit ON inventory_product
    FOR EACH ROW WHEN (
        NEW.on_hand - NEW.reserved + NEW.backorder_limit > OLD.on_hand - OLD.reserved + OLD.backorder_limit)
    EXECUTE FUNCTION inventory_stock_came_back();
"""

DROP = """
DROP TRIGGER inventory_stock_came_back ON inventory_product;
DROP FUNCTION inventory_stock_came_back();
"""


class Migration(migrations.Migration):
    dependencies = [("inventory", "0018_backorders")]

    operations = [migrations.RunSQL(CREATE, DROP)]
