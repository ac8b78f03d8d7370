"""Hostile clients of the explorer, on a real server: what they hold, send and ask for keeps nobody else waiting."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import uvicorn
from explorer_helpers import encoded
from starlette.testclient import TestClient

from nearsight.explorer import connections, guard
from nearsight.explorer import store as store_module
from nearsight.explorer.connections import PatientProtocol
from nearsight.explorer.decoder import MAX_BODY, Decoder
from nearsight.explorer.server import make_app
from nearsight.explorer.store import BusyError, Store
from nearsight.images.imageset import BadImage

LOCAL = "http://127.0.0.1:8765"
QUESTION = b"GET /api/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextmanager
def served(app):
    """The port of a server of this app, in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http=PatientProtocol, log_level="critical", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


@pytest.fixture(scope="module")
def port(run_folder):
    from nearsight.explorer.sources import open_source

    with served(make_app([open_source(str(run_folder))])) as port:
        yield port


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def _answer(connection: socket.socket) -> bytes:
    """What comes until the other side closes, or the whole of a short answer."""
    content = b""
    while b"\r\n\r\n" not in content and (piece := connection.recv(65536)):
        content += piece
    return content


def _ask(port: int, question: bytes = QUESTION) -> bytes:
    with _connect(port) as connection:
        connection.sendall(question)
        return _answer(connection)


def _is_closed(connection: socket.socket, seconds: float = 30.0) -> bool:
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_silent_connections_keep_nobody_out(port, monkeypatch):
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 20)
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.0)
    silent = [_connect(port) for _ in range(90)]
    silent[50].sendall(b"GET / HTTP/1.1\r\nHost: loc")
    assert _ask(port).startswith(b"HTTP/1.1 200")
    assert sum(_is_closed(connection, 0.05) for connection in silent) >= 70  # those that were silent longest
    for connection in silent:
        connection.close()


def test_a_header_that_does_not_end_has_a_time_limit(port, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    with _connect(port) as silent, _connect(port) as drip:
        drip.sendall(b"GET / HTTP/1.1\r\n")
        assert _is_closed(silent)
        assert _is_closed(drip)


def test_a_second_header_has_a_time_limit_too(port, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    monkeypatch.setattr(connections, "KEEP_ALIVE_SECONDS", 0.2)
    with _connect(port) as connection:
        connection.sendall(QUESTION)
        assert _answer(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET / HTTP/1.1\r\n")
        assert _is_closed(connection)


class FakeLoop:
    now = 0.0

    def call_later(self, seconds, call):
        return threading.Timer(0, call)  # never started: only its `cancel` is used

    def time(self):
        return self.now


class FakeTransport:
    closed = False

    def abort(self):
        self.closed = True


def _opened(loop, together, *, answering: bool) -> PatientProtocol:
    made = PatientProtocol.__new__(PatientProtocol)
    made.loop, made.transport, made.connections = loop, FakeTransport(), together
    made.cycle = type("Cycle", (), {"response_complete": not answering})()
    together.add(made)
    made._wait(1.0)
    return made


def test_the_idlest_connection_gives_way_but_none_that_is_answered_or_new(monkeypatch):
    loop, together = FakeLoop(), set()
    opened = []
    for answering in (True, False, False):
        opened.append(_opened(loop, together, answering=answering))
        loop.now += 0.4
    opened[-1]._make_room()  # all of them are new
    assert [one.transport.closed for one in opened] == [False, False, False]
    loop.now += 0.5
    opened[-1]._make_room()
    assert [one.transport.closed for one in opened] == [False, True, False]
    assert opened[1] not in together
    monkeypatch.setattr(connections, "CROWD", 1)
    opened[-1]._make_room()  # too many to ask how new
    assert [one.transport.closed for one in opened] == [False, True, True]


@pytest.mark.parametrize(
    "header",
    [b"Content-Length: 314572800\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 1\r\n"],
)
def test_a_body_that_a_request_has_no_use_for_is_not_read(port, header):
    with _connect(port) as connection:
        connection.sendall(b"GET /api/models HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n")
        assert _answer(connection).startswith(b"HTTP/1.1 413")
        assert _is_closed(connection)


def test_what_is_left_of_an_answered_body_is_not_read_to_its_end(port, monkeypatch):
    """An address that there is not is answered before the body is read."""
    monkeypatch.setattr(connections, "LINGER_BYTES", 10_000)
    with _connect(port) as connection:
        connection.sendall(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert b" 404 " in _answer(connection)
        with pytest.raises(ConnectionError):
            connection.sendall((b"1000\r\n" + b"x" * 4096 + b"\r\n") * 10_000)


def test_a_question_is_short(port):
    long = b"x" * (guard.MAX_QUESTION + 1)
    header = b"POST /api/inspections HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(long)
    assert _ask(port, header + long).startswith(b"HTTP/1.1 413")


def test_a_body_that_stalls_is_given_up_whatever_it_is_for(port, monkeypatch):
    monkeypatch.setattr(guard, "STALL_SECONDS", 0.2)
    for path in (b"/api/pictures", b"/api/inspections"):
        head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        with _connect(port) as connection:
            connection.sendall(head)
            assert _answer(connection).split()[1] in (b"408", b"400")
            assert _is_closed(connection)


def test_a_client_that_leaves_within_its_upload_is_no_mistake_of_the_server(port, caplog):
    with _connect(port) as connection:
        connection.sendall(b"POST /api/pictures HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx")
        assert _ask(port).startswith(b"HTTP/1.1 200")
    assert _ask(port).startswith(b"HTTP/1.1 200")
    assert caplog.records == []


@pytest.mark.parametrize(
    "question",
    [
        b"GET /api/pictures/sample-%s/thumbnail HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"1" * 5000),
        b"GET /api/pictures/%s/thumbnail HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"1" * 5000),
        b"GET /api/inspections/%s/picture HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"9" * 5000),
        b"GET /static/%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"a" * 5000),
        b"GET /static/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /api/pictures HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s\r\n\r\n" % (b"9" * 5000),
        b"GET //evil.example/%2e%2e HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_long_names_and_numbers_are_mistakes_of_the_client(port, question):
    assert b" 40" in _ask(port, question).split(b"\r\n")[0]


def test_numbers_without_end_in_a_question(sources):
    with TestClient(make_app(sources), base_url=LOCAL) as client:
        body = '{"model": %s, "picture": "sample-0"}' % ("9" * 5000)
        assert client.post("/api/inspections", content=body).status_code == 422
        assert client.get("/api/inspections/x/maps", params={"row": "0." + "9" * 5000, "col": 0}).status_code in (
            404,
            422,
        )


def test_the_token_s_redirect_stays_on_this_server(sources):
    with TestClient(make_app(sources, host="0.0.0.0", token="s3cret"), base_url="http://box.local") as client:
        for path in ("//evil.example/", "//evil.example/%2f..", "/\\evil.example"):
            answer = client.get(f"http://box.local{path}?token=s3cret", follow_redirects=False)
            assert answer.headers["location"] == "/"


def test_uploads_are_taken_a_few_at_a_time(sources, monkeypatch, picture_bytes):
    monkeypatch.setattr(store_module, "MAX_UPLOADS_UNDER_WAY", 1)
    began, go_on = threading.Event(), threading.Event()
    decode = Decoder.decode

    def slow(self, data, name):
        began.set()
        go_on.wait(30)
        return decode(self, data, name)

    monkeypatch.setattr(Decoder, "decode", slow)
    with TestClient(make_app(sources), base_url=LOCAL) as client:
        answers = []
        first = threading.Thread(
            target=lambda: answers.append(client.post("/api/pictures", content=picture_bytes).status_code)
        )
        first.start()
        assert began.wait(30)
        assert client.post("/api/pictures", content=picture_bytes).status_code == 429
        assert client.get("/api/models").status_code == 200
        go_on.set()
        first.join(30)
        assert answers == [200]


def test_uploads_that_are_kept_are_bounded_in_bytes(sources, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_UPLOAD_BYTES", 2_500)
    store = Store(sources)
    names = [store.add_picture("x", np.zeros((20, 20, 3), np.uint8)) for _ in range(3)]
    with pytest.raises(KeyError):
        store.picture(names[0])
    assert store.picture(names[2]).name == "x"
    alone = store.add_picture("large", np.zeros((50, 50, 3), np.uint8))
    assert store.picture(alone).name == "large"


def test_a_place_is_free_again_after_a_mistake(sources):
    store = Store(sources)
    for _ in range(3 * store_module.MAX_UPLOADS_UNDER_WAY):
        with pytest.raises(RuntimeError), store.upload_place():
            raise RuntimeError
    with pytest.raises(BusyError), _all_places(store):
        pass


@contextmanager
def _all_places(store):
    from contextlib import ExitStack

    with ExitStack() as stack:
        for _ in range(store_module.MAX_UPLOADS_UNDER_WAY + 1):
            stack.enter_context(store.upload_place())
        yield


@pytest.fixture(scope="module")
def decoder():
    made = Decoder()
    yield made
    made.close()


def test_the_decoding_process_gives_the_same_pixels_and_the_same_mistakes(decoder, picture):
    pixels = picture(3, 40, 50)
    np.testing.assert_array_equal(decoder.decode(encoded(pixels), "a.png"), pixels)
    for data, words in ((b"", "empty file"), (b"x" * 50, "not an image of a known format")):
        with pytest.raises(BadImage, match=rf"a\.png: {words}"):
            decoder.decode(data, "a.png")
    np.testing.assert_array_equal(decoder.decode(encoded(pixels), "a.png"), pixels)


def test_a_decoder_that_takes_too_long_is_ended_and_the_next_picture_is_read(picture):
    slow = Decoder(seconds=0.0)
    with pytest.raises(BadImage, match="decoding takes longer than 0 seconds"):
        slow.decode(encoded(picture(1)), "slow.png")
    slow._seconds = 30.0
    np.testing.assert_array_equal(slow.decode(encoded(picture(1)), "slow.png"), picture(1))
    slow.close()


def test_a_decoder_that_takes_too_much_memory_is_refused_it_and_the_next_picture_is_read(picture):
    small = Decoder(memory=350 * 2**20)
    large = encoded(np.zeros((4000, 6000, 4), np.uint8))  # with transparency: copies of it
    assert len(large) < MAX_BODY
    with pytest.raises(BadImage, match=r"takes more than 350 MB|Unable to allocate|decoder died"):
        small.decode(large, "large.png")
    np.testing.assert_array_equal(small.decode(encoded(picture(1)), "small.png"), picture(1))
    small.close()


def test_a_picture_of_the_most_pixels_is_decoded(decoder):
    assert decoder.decode(encoded(np.zeros((4000, 6000, 4), np.uint8)), "large.png").shape == (4000, 6000, 3)


def test_a_decoder_that_dies_is_replaced(decoder, picture):
    decoder.decode(encoded(picture(1)), "a.png")
    process = decoder._process
    process.kill()
    process.wait()
    np.testing.assert_array_equal(decoder.decode(encoded(picture(2)), "b.png"), picture(2))
    assert decoder._process is not process
    deadline = time.monotonic() + 30
    while process.poll() is None:
        assert time.monotonic() < deadline
