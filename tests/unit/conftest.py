"""What the tests of one process share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the project (../shared/data); tests that need it are skipped without it."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"there is no real data at {folder}")
    return folder
