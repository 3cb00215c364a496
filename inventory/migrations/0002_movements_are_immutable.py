"""The database refuses to change the ledger, whichever way: the ORM, an admin's SQL, a bug."""

from django.db import migrations

CREATE = """
CREATE FUNCTION inventory_movement_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The one narrow door: the oversell lab clears its own products, and has to say so in its transaction.
    IF TG_OP = 'DELETE' AND current_setting('holdfast.lab', true) = 'on'
       AND EXISTS (SELECT FROM inventory_product WHERE id = OLD.product_id AND sku LIKE 'lab-%') THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'stock movement % is immutable: % refused', OLD.id, TG_OP
        USING ERRCODE = 'restrict_violation',
              HINT = 'Write an ''adjusted'' movement that corrects it.';
END $$;

CREATE TRIGGER inventory_movement_is_immutable
    BEFORE UPDATE OR DELETE ON inventory_stockmovement
    FOR EACH ROW EXECUTE FUNCTION inventory_movement_is_immutable();
"""

DROP = """
DROP TRIGGER inventory_movement_is_immutable ON inventory_stockmovement;
DROP FUNCTION inventory_movement_is_immutable();
"""


class Migration(migrations.Migration):
    dependencies = [("inventory", "0001_initial")]

    operations = [migrations.RunSQL(CREATE, DROP)]
