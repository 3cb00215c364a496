from django.db import migrations, models

import locking.utils.databases


class Migration(migrations.Migration):
    dependencies = [
        ("locking", "0004_processes"),
    ]

    operations = [
        migrations.AlterField(
            model_name="lockevent",
            name="at",
            field=models.DateTimeField(
                db_default=locking.utils.databases.UtcNow(),
                db_index=True,
                editable=False,
                verbose_name="time",
            ),
        ),
    ]
