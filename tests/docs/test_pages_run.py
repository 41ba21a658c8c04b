"""Every block of README and docs is run, as it stands. How a block says what it needs: tests/docs/blocks.py."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, SHELL, Block, pages, read_blocks
from tests.docs.commands import parse_cadence
from tests.docs.network import Network
from tests.docs.servers import Servers
from tests.docs.session import Session, environment
from tests.docs.warm_commands import WarmCommands
from tests.helpers.smollm2 import smollm2_path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

COLD = ("README.md",)  # its commands are started as users do; those of other pages are forked

_INLINE = re.compile(r"`(cadence [a-z][^`…]*)`")


def _servers_of(page: str) -> str:
    """The commands that start servers on a page. In this order pages that share one come one after another."""
    return " ".join(block.commands.split("#")[0].strip(" &\n") for block in _blocks(page) if block.run == "server")


def _blocks(page: str) -> list[Block]:
    try:
        return read_blocks(page)
    except AssertionError:
        return []  # told by the test of this page


_PAGES = sorted((page for page in pages() if "```" in (ROOT / page).read_text(encoding="utf-8")), key=_servers_of)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


@pytest.fixture(scope="module")
def servers(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    smollm2_path()  # fetched here, if it must be: the network of the pages leads nowhere
    servers = Servers(network, tmp_path_factory.mktemp("servers"))
    yield servers
    servers.stop()


@pytest.fixture(scope="module")
def warm(
    network: Network, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[WarmCommands | None]:
    if pytestconfig.getoption("--cold"):
        yield None
        return
    folder = tmp_path_factory.mktemp("warm")
    commands = WarmCommands(folder, network.enter, environment(folder))
    yield commands
    commands.close()


@pytest.mark.parametrize("page", _PAGES)
def test_page(page: str, network: Network, servers: Servers, warm: WarmCommands | None, tmp_path: Path) -> None:
    blocks = read_blocks(page)
    if any(block.run in ("server", "after-server") for block in blocks) and not network.has_port:
        pytest.skip("port 8000 is taken, and this system has no network namespaces")
    if not shutil.which("curl") and any("curl " in block.text for block in blocks if block.language in SHELL):
        pytest.skip("curl is not installed here")
    session = Session(tmp_path, network, servers, None if page in COLD else warm)
    try:
        for block in blocks:
            session.run(block)
    finally:
        session.close()


@pytest.mark.parametrize("page", pages())
def test_commands_in_sentences(page: str) -> None:
    """`cadence …` in the running text has flags that exist."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for command in _INLINE.findall(re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
        try:
            parse_cadence(shlex.split(command.replace("\n", " "))[1:])
        except ValueError as error:  # a sentence may name a command without all it needs
            assert "arguments are required" in str(error), f"{page}: {command}: {error}"
