import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("inventory", "0012_what_customers_have_reserved"),
    ]

    operations = [
        migrations.AlterField(
            model_name="stockclaim",
            name="created_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(),
                db_index=True,
                editable=False,
                verbose_name="created",
            ),
        ),
        migrations.AlterField(
            model_name="stockmovement",
            name="created_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(),
                db_index=True,
                editable=False,
                verbose_name="created",
            ),
        ),
        migrations.AlterField(
            model_name="stockreservation",
            name="created_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(), editable=False, verbose_name="created"
            ),
        ),
    ]
