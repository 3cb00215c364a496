from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Fence",
            fields=[
                (
                    "name",
                    models.CharField(max_length=255, primary_key=True, serialize=False, verbose_name="name"),
                ),
                ("token", models.BigIntegerField(verbose_name="fencing token")),
                ("owner", models.CharField(max_length=80, verbose_name="owner")),
                (
                    "mark",
                    models.CharField(
                        help_text="Of the last transaction: tells whether it was committed.",
                        max_length=32,
                        verbose_name="mark",
                    ),
                ),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="last used")),
            ],
            options={
                "verbose_name": "fence",
                "verbose_name_plural": "fences",
                "ordering": ["name"],
            },
        ),
    ]
