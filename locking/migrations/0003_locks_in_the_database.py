from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("locking", "0002_held_locks_and_events")]

    operations = [
        migrations.CreateModel(
            name="LockRow",
            fields=[
                (
                    "id",
                    models.CharField(
                        help_text="The key, or its hash where the database wouldn't keep it.",
                        max_length=255,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("name", models.TextField(verbose_name="key")),
                ("owner", models.CharField(blank=True, max_length=80, verbose_name="owner")),
                ("token", models.BigIntegerField(verbose_name="fencing token")),
                (
                    "expires",
                    models.BigIntegerField(help_text="0: released.", verbose_name="end of the lease"),
                ),
                ("since", models.BigIntegerField(verbose_name="held since")),
                ("wanted", models.BigIntegerField(verbose_name="waited for until")),
                (
                    "kept",
                    models.BooleanField(
                        help_text="A database checks its tokens.", verbose_name="kept forever"
                    ),
                ),
            ],
            options={
                "db_table": "locking_row",
                "verbose_name": "lock in the database",
                "verbose_name_plural": "locks in the database",
            },
        ),
    ]
