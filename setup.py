"""What istmpi is and needs stands in pyproject.toml."""

from setuptools import setup

setup()
