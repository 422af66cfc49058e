"""``python -m istmpi`` is ``istmpi``."""

from istmpi.cli.main import main

main()
