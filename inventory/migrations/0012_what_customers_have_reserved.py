from django.db import migrations, models

# What is live already counts from now on.
COUNT = """
INSERT INTO inventory_customerpurchase (customer, product_id, units, reserved)
SELECT customer, product_id, 0, sum(quantity) FROM inventory_stockreservation
 WHERE state = 'live' AND customer <> '' GROUP BY customer, product_id
ON CONFLICT (customer, product_id) DO UPDATE SET reserved = excluded.reserved
"""


class Migration(migrations.Migration):
    dependencies = [
        ("inventory", "0011_reservations_limits_and_thresholds"),
    ]

    operations = [
        migrations.AddField(
            model_name="customerpurchase",
            name="reserved",
            field=models.PositiveIntegerField(
                db_default=0, default=0, help_text="Units of live reservations.", verbose_name="reserved"
            ),
        ),
        migrations.RunSQL(COUNT, migrations.RunSQL.noop),
    ]
