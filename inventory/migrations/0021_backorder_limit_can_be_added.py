"""A backorder limit that can be added to any stock; one that was meant as *unlimited* becomes the highest."""

import django.core.validators
from django.db import migrations, models

LOWER = "UPDATE inventory_product SET backorder_limit = 1000000000 WHERE backorder_limit > 1000000000"


class Migration(migrations.Migration):
    dependencies = [("inventory", "0020_scopes_and_moves")]

    operations = [
        migrations.AlterField(
            model_name="product",
            name="backorder_limit",
            field=models.PositiveIntegerField(
                db_default=0,
                default=0,
                help_text="Units that may be sold beyond those that are there, to be shipped once they come in.",
                validators=[django.core.validators.MaxValueValidator(1_000_000_000)],
                verbose_name="backorder limit",
            ),
        ),
        migrations.RunSQL([LOWER, "SET CONSTRAINTS ALL IMMEDIATE"], migrations.RunSQL.noop),
        migrations.AddConstraint(
            model_name="product",
            constraint=models.CheckConstraint(
                condition=models.Q(("backorder_limit__lte", 1_000_000_000)),
                name="product_backorder_limit_can_be_added",
            ),
        ),
    ]
