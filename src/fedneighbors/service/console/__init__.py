"""The broker's console: pages for browsers, at the same port as the REST API."""

from starlette.middleware import Middleware
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from fedneighbors.service._broker import Broker
from fedneighbors.service._stored import QueryStore
from fedneighbors.service.console._operate import make_operation
from fedneighbors.service.console._overview import make_overview
from fedneighbors.service.console._pages import FOLDER, ROOT, Console, SafeHeaders, find_nothing
from fedneighbors.service.console._records import make_records
from fedneighbors.service.console._search import make_search
from fedneighbors.service.console._sessions import Sessions

__all__ = ["Sessions", "make_console"]


def make_console(broker: Broker, store: QueryStore, sessions: Sessions) -> Mount:
    """Return the console of a broker.

    Parameters
    ----------
    broker : Broker
        The broker.
    store : QueryStore
        Stored queries, those of the REST API.
    sessions : Sessions
        Sessions of browsers.
    """
    console = Console(broker, store, sessions)
    return Mount(
        ROOT,
        routes=[
            Mount("/static", StaticFiles(directory=FOLDER / "static")),
            *make_overview(console),
            *make_search(console),
            *make_operation(console),
            *make_records(console),
            *console.page("/{path:path}", find_nothing),
        ],
        middleware=[Middleware(SafeHeaders)],
    )
