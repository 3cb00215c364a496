"""The runs of the lab are in tables of `orders.lab`; those of the past, at most fifty, go."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("orders", "0016_currencies_names_and_locations")]

    operations = [migrations.DeleteModel("LabEvent"), migrations.DeleteModel("LabRun")]
