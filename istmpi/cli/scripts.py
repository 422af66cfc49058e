"""Scripts of `istmpi job`: templates of job_scripts/, filled in for one run."""

import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from istmpi.errors import ConfigError

TEMPLATES = Path(str(files("istmpi") / "job_scripts"))

_MARK = re.compile(r"^# ---- .*\n(?:.*\n)*?# ----\n", re.MULTILINE)
"""The lines of a template that are filled in."""


def fill_directives(
    template: str,
    scheduler: Mapping[str, Any],
    fields: Mapping[str, Any],
    examples: Mapping[str, Any],
) -> str:
    """Return a template with the scheduler's directives for the fields.

    ``<...{field}...>`` in a directive is left out without its field. A directive that lacks another
    field becomes a comment with an example.
    """

    def keep_known(part: re.Match[str]) -> str:
        return part[1] if part[2] in fields else ""

    mark = scheduler["mark"]
    for directive in scheduler["directives"]:
        # A directive's fixed beginning finds its line in the template, even commented out.
        begin = re.escape(mark + re.split("[{<]", directive)[0])
        text = re.sub("<(.*?{(\\w+)}.*?)>", keep_known, directive)
        line = mark + text.format_map({**examples, **fields})
        if not {*re.findall(r"{(\w+)}", text)} <= {*fields}:
            line = f"#{line}"
        template = re.sub(f"(?m)^#?{begin}.*$", line, template, count=1)
    return template


def list_options(options: Mapping[str, object]) -> list[str]:
    words = []
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", str(value)]
    return words


def read_template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def print_script(template: str, verb: str, lines: Sequence[str], arguments: Sequence[str]) -> None:
    """Print a template, whose marked lines become ``lines`` and the run's ``arguments``."""
    lines = [
        f"# ---- filled in by istmpi job {verb}",
        *lines,
        f"set -- {shlex.join(arguments)}",
        "# ----",
        "",
    ]
    # A function, because a text's backslashes would be read as references.
    text = _MARK.sub(lambda _: "\n".join(lines), template, count=1)
    for line in text.split("\n"):
        # A quoted control character could still deceive the reader of the script.
        if not line.replace("\t", "").isprintable():
            raise ConfigError(
                f"the script would contain a line that cannot be printed: {line}. "
                "Give another name."
            )
    click.echo(text, nl=False)
