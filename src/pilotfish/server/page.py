"""The web page at `/`: a chat whose drafted tokens can be seen.

Owns the files in `page/` and the headers they are served with, which forbid the page to load anything from elsewhere
or to run anything that is not in these files. Knows no request and no model: the page speaks to the API as any other
client does.
"""

from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pilotfish.errors import InvalidInputError

FILES = {
    "index.html": "text/html",
    "style.css": "text/css",
    "app.js": "text/javascript",
    "gauge.js": "text/javascript",
    "stream.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def page_response(name: str) -> Response:
    """One file of the page, with its headers.

    Raises:
        InvalidInputError: the page has no such file.
    """
    if name not in FILES:
        raise InvalidInputError(f"the page has no file {name!r}: expected one of {', '.join(FILES)}")
    content = resources.files("pilotfish.server").joinpath("page", name).read_bytes()
    return Response(content, media_type=FILES[name], headers=HEADERS)


def page_routes() -> list[Route]:
    """Routes of the page and its files, none of which needs a key: `/`, and `/page/...` for what it loads."""
    return [_route("/", "index.html"), *(_route(f"/page/{name}", name) for name in FILES if name != "index.html")]


def _route(path: str, name: str) -> Route:
    async def serve(request: Request) -> Response:
        return page_response(name)

    return Route(path, serve, name=f"page:{name}", include_in_schema=False)
