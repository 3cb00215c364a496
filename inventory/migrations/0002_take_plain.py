from django.db import migrations

from inventory.apps import installed_label
from inventory.triggers import install_take, uninstall_take


class Migration(migrations.Migration):
    dependencies = [(installed_label(), "0001_initial")]

    operations = [migrations.RunPython(install_take, uninstall_take)]
