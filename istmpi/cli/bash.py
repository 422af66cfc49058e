"""How bash is told what it may offer behind TAB; needed before any command is imported."""

import os

from click.shell_completion import BashComplete, CompletionItem, split_arg_string


class Bash(BashComplete):
    """Bash, which takes = and : for the ends of words; what it offers there must begin behind them."""

    source_template = BashComplete.source_template.replace("-o nosort", "-o nosort -o default")
    """Where nothing is offered bash completes names of files."""
    _left_out = 0

    def get_completion_args(self) -> tuple[list[str], str]:
        """All words before the one that is typed, and this; parts that = or : has cut are one word again."""
        words, at = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
        parts = [*words[1 : at + 1], ""] if len(words) <= at else words[1 : at + 1]
        joined: list[str] = []
        glued = False
        for part in parts:
            if joined and (glued or part in ("=", ":")):
                joined[-1] += part
            else:
                joined.append(part)
            glued = part in ("=", ":")
        *before, typed = joined or [""]
        if typed != parts[-1]:
            self._left_out = len(typed) - (0 if parts[-1] in ("=", ":") else len(parts[-1]))
        return before, typed

    def format_completion(self, item: CompletionItem) -> str:
        """Type and value, without what stands in the line already."""
        left_out = self._left_out if item.type == "plain" else 0
        return f"{item.type},{item.value[left_out:]}"
