"""Tests of the tree of errors in the docstring of `polaris_spark.errors`, from which the reference is made."""

import inspect
import re

from polaris_spark import errors


def test_the_tree_names_every_error_and_nothing_else() -> None:
    own = {
        name
        for name, found in vars(errors).items()
        if inspect.isclass(found) and found.__module__ == errors.__name__
    }
    trees = re.findall(r"```\n(.*?)```", errors.__doc__ or "", re.DOTALL)
    lines = [line for tree in trees for line in tree.splitlines()]
    first = [re.match(r"[│├└─ ]*(\w+Error(?:, \w+Error)*)", line) for line in lines]
    named = [name for found in first if found for name in found.group(1).split(", ")]
    assert own == set(named)
    assert all("│" in line or "─" in line or line in named for line in lines)
