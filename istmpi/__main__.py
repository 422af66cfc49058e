"""``python -m istmpi`` is ``istmpi``."""

from istmpi.cli.main import main

if __name__ == "__main__":
    main()
