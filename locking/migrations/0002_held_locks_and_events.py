"""Held locks for the admin (no table), and the audit, which PostgreSQL itself refuses to change."""

from django.db import migrations, models

CREATE = """
CREATE FUNCTION locking_lockevent_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The one narrow door: manage.py prune_lock_events, which has to say so in its transaction.
    IF TG_OP = 'DELETE' AND current_setting('holdfast.prune', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'lock event % is immutable: % refused', OLD.id, TG_OP
        USING ERRCODE = 'restrict_violation',
              HINT = 'Old ones go by manage.py prune_lock_events.';
END $$;

CREATE TRIGGER locking_lockevent_is_immutable
    BEFORE UPDATE OR DELETE ON locking_lockevent
    FOR EACH ROW EXECUTE FUNCTION locking_lockevent_is_immutable();
"""

DROP = """
DROP TRIGGER locking_lockevent_is_immutable ON locking_lockevent;
DROP FUNCTION locking_lockevent_is_immutable();
"""


def create_trigger(apps, schema_editor):
    """Elsewhere the model refuses, and the database doesn't: triggers need rights that an account may lack."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(CREATE, params=None)


def drop_trigger(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(DROP, params=None)


class Migration(migrations.Migration):
    dependencies = [
        ("locking", "0001_fence"),
    ]

    operations = [
        migrations.CreateModel(
            name="HeldLock",
            fields=[
                (
                    "ident",
                    models.CharField(editable=False, max_length=4000, primary_key=True, serialize=False),
                ),
            ],
            options={
                "verbose_name": "held lock",
                "verbose_name_plural": "held locks",
                "permissions": [
                    ("release_heldlock", "Can break a held lock by force"),
                    ("extend_heldlock", "Can extend a held lock"),
                ],
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="LockEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField(auto_now_add=True, db_index=True, verbose_name="time")),
                (
                    "action",
                    models.CharField(
                        choices=[("force_release", "force release"), ("extend", "extend")],
                        max_length=20,
                        verbose_name="action",
                    ),
                ),
                (
                    "done",
                    models.BooleanField(
                        default=True,
                        help_text="No: the hold had ended, so there was nothing to do.",
                        verbose_name="done",
                    ),
                ),
                ("actor", models.CharField(max_length=200, verbose_name="actor")),
                ("reason", models.TextField(blank=True, verbose_name="reason")),
                ("backend", models.CharField(max_length=100, verbose_name="backend")),
                ("name", models.CharField(max_length=1024, verbose_name="name")),
                ("key", models.CharField(max_length=1200, verbose_name="key")),
                ("kind", models.CharField(max_length=20, verbose_name="kind")),
                ("owner", models.CharField(max_length=200, verbose_name="owner")),
                (
                    "holder",
                    models.CharField(
                        help_text="Who it was, where that was known.", max_length=400, verbose_name="holder"
                    ),
                ),
                ("token", models.BigIntegerField(default=0, verbose_name="fencing token")),
                ("details", models.TextField(blank=True, verbose_name="details")),
            ],
            options={
                "verbose_name": "lock event",
                "verbose_name_plural": "lock events",
                "ordering": ["-at", "-pk"],
            },
        ),
        migrations.RunPython(create_trigger, drop_trigger),
    ]
