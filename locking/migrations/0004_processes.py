from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("locking", "0003_locks_in_the_database")]

    operations = [
        migrations.CreateModel(
            name="ProcessRow",
            fields=[
                ("id", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("text", models.TextField(help_text="JSON.", verbose_name="what it tells")),
                (
                    "seen",
                    models.BigIntegerField(
                        help_text="Microseconds since 1970, by the database's clock.",
                        verbose_name="last sign of life",
                    ),
                ),
            ],
            options={
                "db_table": "locking_process",
                "verbose_name": "process that holds locks",
                "verbose_name_plural": "processes that hold locks",
            },
        ),
    ]
