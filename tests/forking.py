"""Processes of tests that are forked from a server, which has imported what they need. They start in milliseconds."""

from __future__ import annotations

import multiprocessing

context = multiprocessing.get_context("forkserver")
_preloaded: list[str] = []


def preload(module: str) -> None:
    """Let the server import a module. Called when the module is imported, before any process is started.

    A list of one module instead would replace that of another module, whose processes then import everything
    themselves.
    """
    _preloaded.append(module)
    context.set_forkserver_preload(_preloaded)
