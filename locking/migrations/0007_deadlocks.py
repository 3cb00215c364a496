from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("locking", "0006_dead_processes"),
    ]

    operations = [
        migrations.AlterField(
            model_name="lockevent",
            name="action",
            field=models.CharField(
                choices=[
                    ("force_release", "force release"),
                    ("extend", "extend"),
                    ("dead_process", "release for a dead process"),
                    ("deadlock", "deadlock"),
                ],
                max_length=20,
                verbose_name="action",
            ),
        ),
    ]
