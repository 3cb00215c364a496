"""A number of each order, of which there is one."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("orders", "0002_refunds"),
    ]

    # The sequence belongs to no column: a table that takes the place of this one goes on with it.
    operations = [
        migrations.RunSQL(
            "CREATE SEQUENCE orders_order_number START 1001", "DROP SEQUENCE orders_order_number"
        ),
        migrations.AddField(
            model_name="order",
            name="number",
            field=models.BigIntegerField(
                db_default=models.Func(
                    models.Value("orders_order_number"),
                    function="nextval",
                    output_field=models.BigIntegerField(),
                ),
                editable=False,
                help_text="What people call it.",
                unique=True,
                verbose_name="number",
            ),
        ),
    ]
