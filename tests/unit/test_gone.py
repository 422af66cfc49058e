"""Settings that no longer exist."""

import pytest

from istmpi import gone
from istmpi.config import Run
from istmpi.errors import ConfigError


@pytest.mark.parametrize("name, default", gone.GONE.items())
def test_a_setting_that_is_gone_may_have_its_default_alone(name, default):
    assert Run().override({name: default}) == Run()
    section, key = name.split(".")
    assert Run.from_tree({section: {key: default}}, "run.toml") == Run()
    with pytest.raises(ConfigError, match=rf"^run.toml: {name} = 7 no longer exists. Leave it out.$"):
        Run.from_tree({section: {key: 7}}, "run.toml")
