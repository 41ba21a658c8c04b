"""Fixtures of the shell's tests: the server's application over a fake engine, for commands that ask one."""

from tests.server.conftest import fake_model, serve  # noqa: F401  (fixtures)
