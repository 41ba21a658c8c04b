"""Media of requests beside an event loop: few at once, bounded memory, and nobody waits for one that hangs."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import IMAGE, VIDEO
from cadence.entrypoints.media import service as service_module
from cadence.entrypoints.media.held_bytes import HeldBytes
from cadence.entrypoints.media.pending import NO_PENDING, PendingMedia
from cadence.entrypoints.media.service import MediaService
from cadence.media.fetch.read_url import UrlReader
from cadence.media.fetch.reader import MediaReader
from cadence.media.limits import DEFAULT_LIMITS, MediaAccess
from cadence.media.parts import MediaPart
from tests.media.pictures import data_url, picture
from tests.media.web import HOST, Web, web

SIZE = 3 * 40 * 30  # bytes of the pixels of one picture
ACCESS = MediaAccess(domains=frozenset((HOST,)), seconds={IMAGE: 1.0, VIDEO: 1.0})
PATIENT = MediaAccess(domains=frozenset((HOST,)), seconds={IMAGE: 200.0, VIDEO: 200.0})


@pytest.fixture(scope="module")
def pictures_web() -> Iterator[Web]:
    with web() as running:
        yield running


def pending(*urls: str) -> PendingMedia:
    return PendingMedia([MediaPart(IMAGE, f"part {number}", url) for number, url in enumerate(urls)])


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def within() -> Any:
        async with asyncio.timeout(240):
            return await work()

    return asyncio.run(within())


def service(server: Web | None = None, access: MediaAccess = ACCESS, **options: Any) -> MediaService:
    resolve = server.resolve if server else lambda host, port: []
    urls = UrlReader(DEFAULT_LIMITS, access, lambda _: True, resolve)
    return MediaService(MediaReader(DEFAULT_LIMITS, urls), **options)


GOOD = data_url(picture())


def test_pictures_come_in_order_and_are_let_go(pictures_web: Web) -> None:
    async def work() -> None:
        media, freed = service(pictures_web), []
        asked = pending(data_url(picture(seed=2)), pictures_web.url("/good.png"), data_url(picture(seed=3)))
        asked.when_read(lambda: freed.append(True))
        async with media.opened(asked) as data:
            fresh = [MediaReader().read([part])[IMAGE][0].digest for part in pending(*map(data_url, PICTURES)).take()]
            assert [one.digest for one in data[IMAGE]] == fresh
            assert freed and asked.is_empty and len(asked.places) == 3
        assert data == {}  # who still has it keeps no pixels
        async with media.opened(NO_PENDING) as data:
            assert data == {}

    run(work)


PICTURES = (picture(seed=2), picture(), picture(seed=3))


def test_pixels_wait_for_room() -> None:
    async def work() -> None:
        media = service(max_held_bytes=2 * SIZE)
        async with AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(media.opened(pending(GOOD)))
            waiting = asyncio.ensure_future(stack.enter_async_context(media.opened(pending(GOOD))))
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
            waiting.cancel()
        async with media.opened(pending(GOOD)), media.opened(pending(GOOD)):
            pass  # one that left has left nothing behind

    run(work)


def test_urls_that_hang_hold_up_nobody(pictures_web: Web) -> None:
    release, asked = threading.Event(), threading.Semaphore(0)

    def hang(connection: socket.socket) -> None:
        asked.release()
        release.wait(240)

    async def one(media: MediaService, url: str) -> object:
        async with media.opened(pending(url)) as data:
            return len(data[IMAGE])

    async def work() -> None:
        media = service(pictures_web, PATIENT)
        hanging = [asyncio.ensure_future(one(media, pictures_web.url("/hangs-for-others"))) for _ in range(10)]
        for _ in hanging:
            assert await asyncio.to_thread(asked.acquire, timeout=200)
        assert await one(media, GOOD) == await one(media, pictures_web.url("/good.png")) == 1
        assert not any(answer.done() for answer in hanging)
        release.set()
        answers = await asyncio.gather(*hanging, return_exceptions=True)
        assert all(isinstance(answer, InvalidRequestError) for answer in answers)

    pictures_web.answers["/hangs-for-others"] = hang
    run(work)


def test_names_that_are_looked_up_for_ever_are_given_up() -> None:
    release = threading.Event()

    async def work() -> None:
        reader = UrlReader(DEFAULT_LIMITS, ACCESS, lambda _: True, lambda host, port: release.wait(240) and [])
        media = MediaService(MediaReader(DEFAULT_LIMITS, reader))
        start = time.monotonic()
        with pytest.raises(InvalidRequestError, match="part 0: the URL took more than 1 seconds"):
            async with media.opened(pending(f"http://{HOST}/")):
                pass
        assert time.monotonic() - start < 120
        release.set()
        media.close()

    try:
        run(work)
    finally:
        release.set()


def test_one_bad_picture_is_named_and_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "THREADS", 1)

    async def work() -> None:
        media = service(max_held_bytes=SIZE)
        for _ in range(3):
            with pytest.raises(InvalidRequestError, match=r"part 1: .* cannot be decoded"):
                async with media.opened(pending(GOOD, data_url(picture()[:300]))):
                    pass
        async with media.opened(pending(GOOD)) as data:
            assert len(data[IMAGE]) == 1

    run(work)


def test_counts_are_checked_before_anything_is_fetched(pictures_web: Web) -> None:
    async def work() -> None:
        limits = replace(DEFAULT_LIMITS, per_prompt={IMAGE: 1})
        reader = MediaReader(limits, UrlReader(limits, ACCESS, lambda _: True, pictures_web.resolve))
        pictures_web.asked.clear()
        with pytest.raises(InvalidRequestError, match="part 1: a prompt may have at most 1 picture"):
            async with MediaService(reader).opened(pending(*[pictures_web.url("/good.png")] * 2)):
                pass
        assert not pictures_web.asked

    run(work)


def test_held_bytes_are_shared_in_order() -> None:
    async def work() -> None:
        held, order = HeldBytes(10), list[str]()

        async def take(name: str, size: int) -> None:
            async with held.share(size):
                order.append(name)
                await asyncio.sleep(0.01)

        first, second, third, fourth = (
            asyncio.ensure_future(take(name, size)) for name, size in (("a", 6), ("b", 99), ("c", 1), ("d", 4))
        )
        await asyncio.sleep(0)
        third.cancel()
        await asyncio.gather(first, second, fourth)
        assert order == ["a", "b", "d"]  # the large one alone, and nobody before it

    run(work)


def test_names_in_errors_are_those_of_the_request() -> None:
    parts = [MediaPart(kind, where) for kind, where in ((IMAGE, "a"), (VIDEO, "b"), (IMAGE, "c"))]
    assert PendingMedia(parts).names() == {
        "multi_modal_data.image[0]": "a", "multi_modal_data.video[0]": "b", "multi_modal_data.image[1]": "c",
        "multi_modal_data.image": "messages", "multi_modal_data.video": "messages",
    }  # fmt: skip
