"""Makes ``python -m istmpi`` the same as ``istmpi``."""

from istmpi.cli.main import main

if __name__ == "__main__":
    main()
