"""Pages that all tabs share: one is loaded once, at its pace, however many ask for it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from starlette.responses import Response

from drumline.views.serve.reading import PageSource, Reading, TickOver

#: Time between two ticks of a page, and two refreshes of it while data come; s.
TICK_S = 3
#: Time for which a tab waits for the newer page before it gets the older one, and age up to which it does; s.
NEWER_TIMEOUT_S, OLD_S = 1.0, 120.0
#: Share of one core for loading pages again, in this process and in the server together. The rest of a core is for
#: the tabs' requests.
CORE_SHARE = 0.6
#: Longest pause between two such loads, after many pages were opened at a time; s.
MOST_PAUSE_S = 20.0
#: Pages kept, and pages loaded at a time of which there is no recent one. One more is loaded again.
MOST_VIEWS, FIRST_LOADS = 512, 2
Load = Callable[[Reading], Response]


@dataclass
class View:
    """A page. `loaded`: when; monotonic, s."""

    response: Response | None = None
    loaded: float = 0.0
    task: asyncio.Task[Response] | None = None


@dataclass
class Views:
    """Keeps pages by address. For one event loop; pages are loaded on threads."""

    source: PageSource
    _views: dict[str, View] = field(default_factory=dict)
    _free_at: float = 0.0

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(FIRST_LOADS + 1, "page")
        self._first = asyncio.Semaphore(FIRST_LOADS)
        self._again = asyncio.Semaphore(1)

    async def answer(self, address: str, load: Load) -> Response:
        """Return the page of an address: a tick old, or older where its load takes longer. Raises the load's errors."""
        now = time.monotonic()
        view = self._view(address)
        if view.response is not None and now < view.loaded + TICK_S:
            return view.response
        again = view.response is not None and now < view.loaded + OLD_S
        if view.task is None:
            view.task = asyncio.create_task(self._load(view, load, again))
        if view.response is None or not again:
            return await asyncio.shield(view.task)
        await asyncio.wait([view.task], timeout=NEWER_TIMEOUT_S)
        return view.response

    def _view(self, address: str) -> View:
        view = self._views.pop(address, None) or View()
        self._views[address] = view  # the last one asked for is the last
        while len(self._views) > MOST_VIEWS:
            del self._views[next(iter(self._views))]
        return view

    async def _load(self, view: View, load: Load, again: bool) -> Response:
        """Load a page, in as many ticks as it needs; one of which no tab has a recent one, without a break."""
        reading = Reading(self.source, others_wait=not again and self._first.locked())
        try:
            # One first load after the other, whole: taking turns, all tabs would wait as long as the last one.
            async with contextlib.nullcontext() if again else self._first:
                while (response := await self._next_tick(reading, load, again)) is None:
                    if again:
                        await asyncio.sleep(TICK_S)
            view.response, view.loaded = response, time.monotonic() - (TICK_S if reading.hurried else 0)
            return response
        finally:
            view.task = None

    async def _next_tick(self, reading: Reading, load: Load, again: bool) -> Response | None:
        """Return the page, or None where it needs another tick; a page loaded again waits for its share of a core."""
        if not again:
            return await self._tick(reading, load)
        async with self._again:
            await asyncio.sleep(max(0.0, self._free_at - time.monotonic()))
            return await self._tick(reading, load)

    async def _tick(self, reading: Reading, load: Load) -> Response | None:
        """Return the page, or None where it needs another tick; count the time against the share of a core."""
        reading.begin_tick()
        spent_before = reading.spent_s

        def work() -> tuple[Response | None, float]:
            began = time.thread_time()
            try:
                response = load(reading)
            except TickOver:
                response = None
            return response, time.thread_time() - began

        response, computed_s = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        cost_s = computed_s + reading.spent_s - spent_before
        now = time.monotonic()
        self._free_at = min(max(self._free_at, now) + cost_s / CORE_SHARE, now + MOST_PAUSE_S)
        return response
