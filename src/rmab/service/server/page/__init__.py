"""The page of a federation: files that a browser loads from the server and nowhere else.

`index.html` holds the landmarks and `page.css` the style. `page.js` asks `/v1/overview` every
second and draws the answer. It is one of several modules, each of which imports only from those to
its right, by their relative names:

    page ── reward, arms, tables ── charts ── elements ── words

There is no build step, no framework and no other asset. The page holds under

    default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';
    img-src 'self' data:

and puts every name it is given into the document as text, never as markup.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from rmab.errors import FederationError

__all__ = ["ADDRESSES", "ASSETS", "asset"]

MODULES = ("page", "reward", "arms", "tables", "charts", "elements", "words")
ASSETS = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    **{f"{module}.js": "text/javascript; charset=utf-8" for module in MODULES},
}

ADDRESSES = {f"/{name}".replace("/index.html", "/"): name for name in ASSETS}  # by path


@cache
def asset(name: str) -> tuple[bytes, str]:
    """Return a file of the page and its media type."""
    if name not in ASSETS:
        raise FederationError(f"page: asset must be one of {', '.join(ASSETS)}, got {name!r}")
    return files(__name__).joinpath(name).read_bytes(), ASSETS[name]
