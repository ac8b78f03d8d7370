"""`nearsight explore`: the web page."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from nearsight.cli.options import Download, Weights


def explore(
    *sources: str,
    host: str = "127.0.0.1",
    port: int = 8765,
    open_browser: Annotated[bool, Parameter(name="--open", negative="--no-open")] = True,
    weights: Weights = "",
    download: Download = False,
) -> int:
    """Look inside models in a web page: every map of every layer and head, from any patch of any picture.

    Parameters
    ----------
    sources
        Run folders, model names (`convit_tiny`), or timm's (`timm:deit_tiny_patch16_224`); two are seen side by side.
    host
        Address to serve on. Any other than this machine's own needs the token that is then printed.
    port
        Port to serve on; 0 takes any free one.
    open_browser
        Open the page in a browser.
    """
    import contextlib
    import secrets
    import socket
    import sys

    from nearsight.explorer.guard import is_every_address, is_loopback
    from nearsight.explorer.sources import RunSource, open_source, pictures_of

    try:
        from nearsight.explorer.connections import serve
        from nearsight.explorer.server import make_app
    except ImportError as error:
        raise ValueError(f"the explorer needs {error.name}: pip install 'nearsight[explorer]'") from error

    if weights and len(sources) != 1:
        raise ValueError("--weights goes with one model; give one source")
    if not 0 <= port < 2**16:
        raise ValueError(f"--port is a number from 0 to 65535, not {port}")
    names = sources or ("convit_tiny", "deit_tiny")
    opened = [open_source(spec, weights=weights, download=download) for spec in names]
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    samples = None
    if any(isinstance(source, RunSource) for source in opened):
        pictures = pictures_of(opened)
        print(f"pictures: {pictures.origin}", file=sys.stderr)
        samples = pictures.samples() or None
    app = make_app(opened, host=host, token=token, samples=samples)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns off Nagle's delay (40 ms in every answer) for such sockets only.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ValueError(
            f"cannot serve on {host}:{port} ({error.strerror}); choose another --port, or 0 for any"
        ) from error
    reached = socket.gethostname() if is_every_address(host) else host
    shown = f"[{reached}]" if ":" in reached else reached
    address = f"http://{shown}:{listener.getsockname()[1]}/" + (f"?token={token}" if token else "")
    print(f"looking inside {', '.join(source.name for source in opened)}: {address}  (Ctrl+C ends it)", flush=True)
    if open_browser:
        import webbrowser

        webbrowser.open(address)
    with listener, contextlib.suppress(KeyboardInterrupt):
        serve(app, listener)
    return 0
