"""When an order was paid, and refunds of it."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


# A payment whose event was forgotten is dated by its order.
PAID = """
UPDATE orders_order o SET paid_at = coalesce(
       (SELECT min(created_at) FROM orders_orderevent WHERE order_id = o.id AND kind = 'paid'), created_at)
 WHERE state IN ('paid', 'partly_shipped', 'shipped', 'returned')
    OR EXISTS (SELECT FROM orders_orderevent WHERE order_id = o.id AND kind = 'paid')
"""


class Migration(migrations.Migration):
    dependencies = [
        ("orders", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="order",
            name="paid_at",
            field=models.DateTimeField(editable=False, null=True, verbose_name="paid at"),
        ),
        migrations.RunSQL(PAID, migrations.RunSQL.noop),
        migrations.CreateModel(
            name="Refund",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("amount", models.DecimalField(decimal_places=2, max_digits=18, verbose_name="amount")),
                (
                    "reference",
                    models.CharField(
                        help_text="Of the refund; nothing is refunded twice.",
                        max_length=60,
                        verbose_name="reference",
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        editable=False,
                        verbose_name="created",
                    ),
                ),
                (
                    "order",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="refunds",
                        to="orders.order",
                        verbose_name="order",
                    ),
                ),
            ],
            options={
                "verbose_name": "refund",
                "verbose_name_plural": "refunds",
                "ordering": ("pk",),
                "constraints": [
                    models.UniqueConstraint(fields=("order", "reference"), name="refund_once_a_reference"),
                    models.CheckConstraint(
                        condition=models.Q(("amount__gt", 0)), name="refund_amount_positive"
                    ),
                ],
            },
        ),
    ]
