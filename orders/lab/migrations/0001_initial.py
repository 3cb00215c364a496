"""Products, orders and runs of the lab, and what single strategies need beside them."""

import uuid
from decimal import Decimal

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import orders.lab.models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="LabRun",
            fields=[
                (
                    "id",
                    models.CharField(
                        default=orders.lab.models.new_id,
                        editable=False,
                        max_length=12,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[("race", "race"), ("steps", "steps"), ("vote", "vote")],
                        max_length=5,
                        verbose_name="kind",
                    ),
                ),
                ("parameters", models.JSONField(verbose_name="parameters")),
                (
                    "started_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        db_index=True,
                        editable=False,
                        verbose_name="started",
                    ),
                ),
                ("ended_at", models.DateTimeField(null=True, verbose_name="ended")),
            ],
            options={
                "verbose_name": "run of the lab",
                "verbose_name_plural": "runs of the lab",
                "ordering": ("-started_at", "-pk"),
            },
        ),
        migrations.CreateModel(
            name="NamedLock",
            fields=[
                ("name", models.CharField(max_length=100, primary_key=True, serialize=False)),
            ],
        ),
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("strategy", models.CharField(max_length=40)),
                ("total", models.DecimalField(decimal_places=2, max_digits=12)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="LabEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "sender",
                    models.CharField(
                        choices=[("run", "run"), ("visitor", "visitor")], max_length=7, verbose_name="sender"
                    ),
                ),
                ("data", models.JSONField(verbose_name="data")),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="events",
                        to="lab.labrun",
                        verbose_name="run",
                    ),
                ),
            ],
            options={
                "verbose_name": "event of a run",
                "verbose_name_plural": "events of a run",
                "ordering": ("pk",),
            },
        ),
        migrations.CreateModel(
            name="Product",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sku", models.CharField(max_length=64, unique=True)),
                ("name", models.CharField(max_length=200)),
                ("price", models.DecimalField(decimal_places=2, default=Decimal("1.00"), max_digits=10)),
                ("on_hand", models.IntegerField(default=0)),
                ("version", models.PositiveBigIntegerField(default=0, editable=False)),
                ("guarded", models.BooleanField(default=True)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("guarded", False), ("on_hand__gte", 0), _connector="OR"),
                        name="lab_on_hand_not_negative",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="OrderItem",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("quantity", models.PositiveIntegerField()),
                ("unit_price", models.DecimalField(decimal_places=2, max_digits=10)),
                (
                    "order",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="items", to="lab.order"
                    ),
                ),
                (
                    "product",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="items", to="lab.product"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="StockUnit",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "product",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="units", to="lab.product"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="StockSegment",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.PositiveSmallIntegerField()),
                ("units", models.PositiveIntegerField()),
                (
                    "product",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="segments", to="lab.product"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("product", "number"), name="lab_segment_once_per_product")
                ],
            },
        ),
    ]
