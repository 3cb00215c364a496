import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("orders", "0012_units_that_were_returned"),
    ]

    operations = [
        migrations.AlterField(
            model_name="idempotencykey",
            name="created_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(),
                db_index=True,
                editable=False,
                verbose_name="created",
            ),
        ),
        migrations.AlterField(
            model_name="labrun",
            name="started_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(),
                db_index=True,
                editable=False,
                verbose_name="started",
            ),
        ),
        migrations.AlterField(
            model_name="order",
            name="created_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(),
                db_index=True,
                editable=False,
                verbose_name="created",
            ),
        ),
    ]
