"""``python -m milepost`` is the ``milepost`` command."""

from milepost.cli.app import main

main()
