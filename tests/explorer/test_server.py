"""The server: what it answers, and what it refuses."""

import asyncio
import re
import threading

import numpy as np
import pytest
from explorer_helpers import encoded
from starlette.testclient import TestClient

from nearsight.explorer import guard as guard_module
from nearsight.explorer import store as store_module
from nearsight.explorer.decoder import MAX_BODY
from nearsight.explorer.guard import Guard
from nearsight.explorer.server import make_app

LOCAL = "http://127.0.0.1:8765"


@pytest.fixture
def client(sources):
    with TestClient(make_app(sources), base_url=LOCAL) as client:
        yield client


def inspect(client, picture="sample-0", model=0, step=None):
    return client.post("/api/inspections", json={"model": model, "step": step, "picture": picture})


def test_the_page_and_its_parts(client):
    page = client.get("/")
    assert page.status_code == 200
    assert "<title>nearsight explorer</title>" in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    for name in ("main.js", "api.js", "pane.js", "picture.js", "playground.js", "export.js", "draw.js", "colors.js"):
        assert client.get(f"/static/{name}").status_code == 200
    assert client.get("/static/style.css").headers["x-content-type-options"] == "nosniff"


def test_models_with_their_snapshots(client):
    run, model = client.get("/api/models").json()
    assert run["name"] == "nano-1"
    assert [snapshot["step"] for snapshot in run["snapshots"]] == [0, 4, 8]
    assert run["selected"] == 4
    assert model["snapshots"] == [{"step": None, "label": "untrained"}]


def test_a_sample_is_inspected_and_read(client):
    samples = client.get("/api/samples").json()
    assert len(samples) == 12
    assert client.get("/api/pictures/sample-3/thumbnail").headers["content-type"] == "image/png"
    answer = inspect(client).json()
    assert len(answer["layers"]) == 6
    assert client.get(f"/api/inspections/{answer['id']}/picture").headers["content-type"] == "image/png"
    maps = client.get(f"/api/inspections/{answer['id']}/maps", params={"row": 0.5, "col": 0.25})
    weights = np.frombuffer(maps.content, "<f2").astype(float).reshape(-1, 64)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=5e-3)
    # Snapshots differ in what their gates were given.
    gates = {step: inspect(client, step=step).json()["layers"][0]["heads"][0]["gate_value"] for step in (0, 4, 8)}
    assert gates == pytest.approx({0: 0.7311, 4: 0.5, 8: 0.2689}, abs=1e-3)


def test_given_samples_stand_in_for_the_bundled_ones(sources):
    samples = [("grey", np.full((20, 30, 3), 128, np.uint8))]
    with TestClient(make_app(sources, samples=samples), base_url=LOCAL) as client:
        assert client.get("/api/samples").json() == [{"id": "sample-0", "name": "grey"}]
        assert inspect(client).json()["picture"]["name"] == "grey"
        assert inspect(client, picture="sample-1").status_code == 404


def test_an_upload_is_kept_in_memory_alone(client, picture_bytes, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    kept = client.post("/api/pictures", params={"name": "mine.png"}, content=picture_bytes)
    assert kept.status_code == 200
    assert kept.json()["name"] == "mine.png"
    answer = inspect(client, picture=kept.json()["id"])
    assert answer.json()["picture"]["name"] == "mine.png"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty file"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image of a known format"),
        (b"\x89PNG\r\n\x1a\n" + b"0" * 40, "bad.png"),
    ],
)
def test_a_bad_file_is_a_message(client, content, said):
    answer = client.post("/api/pictures", params={"name": "bad.png"}, content=content)
    assert answer.status_code == 415
    assert said in answer.json()["error"]
    assert "Traceback" not in answer.text


def test_too_many_pixels_are_refused_from_the_header(client):
    bomb = encoded(np.zeros((30_000, 1_000), dtype=np.uint8))
    assert len(bomb) < 100_000
    answer = client.post("/api/pictures", params={"name": "bomb.png"}, content=bomb)
    assert answer.status_code == 415
    assert "20000 pixels" in answer.json()["error"] or "24000000 pixels" in answer.json()["error"]


def test_too_many_bytes_are_refused_by_their_length(client):
    answer = client.post("/api/pictures", content=b"x" * (MAX_BODY + 1))
    assert answer.status_code == 413
    assert answer.json()["error"] == "the file is larger than 10 MB"


def upload_without_length(app, receive) -> list[dict]:
    """An upload that does not say how long it is, as the server software hands it over."""
    scope = {
        "type": "http", "method": "POST", "path": "/api/pictures", "raw_path": b"/api/pictures", "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")], "http_version": "1.1",
        "scheme": "http", "server": ("127.0.0.1", 8765), "client": ("127.0.0.1", 5), "root_path": "",
    }  # fmt: skip
    sent: list[dict] = []

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent


def test_a_stream_is_cut_off_at_the_cap(sources):
    pulled = 0

    async def receive():
        nonlocal pulled
        pulled += 1
        return {"type": "http.request", "body": b"x" * 2**20, "more_body": True}  # without end

    sent = upload_without_length(make_app(sources), receive)
    assert sent[0]["status"] == 413
    assert pulled == MAX_BODY // 2**20 + 1


def test_a_stream_that_stalls_is_given_up(sources, monkeypatch):
    monkeypatch.setattr(guard_module, "STALL_SECONDS", 0.05)

    async def receive():
        await asyncio.sleep(60)

    sent = upload_without_length(make_app(sources), receive)
    assert sent[0]["status"] == 408


def test_only_known_hosts_and_origins(client, sources):
    assert client.get("/api/models", headers={"host": "evil.example"}).status_code == 400
    assert client.get("/api/models", headers={"host": "localhost:8765"}).status_code == 200
    assert client.get("/api/models", headers={"host": "[::1]:8765"}).status_code == 200
    assert client.get("/api/models", headers={"host": "[bad"}).status_code == 400
    other = {"origin": "http://evil.example"}
    assert client.post("/api/inspections", json={}, headers=other).status_code == 403
    assert client.get("/api/models", headers={"origin": "http://["}).status_code == 403
    own = {"origin": LOCAL}
    assert inspect(client).status_code == 200
    assert client.get("/api/models", headers=own).status_code == 200


def test_other_machines_need_a_token(sources):
    with pytest.raises(ValueError, match="needs a token"):
        make_app(sources, host="0.0.0.0")
    with TestClient(make_app(sources, host="0.0.0.0", token="s3cret"), base_url="http://any.example") as client:
        assert client.get("/api/models").status_code == 403
        assert client.get("/api/models", params={"token": "s3cret"}).status_code == 200
    with pytest.raises(ValueError, match="needs a token"):
        Guard(None, hosts=None, token=None, uploads={})
    with TestClient(make_app(sources, host="box.local", token="s3cret"), base_url="http://box.local") as client:
        assert client.get("/api/models", headers={"host": "evil.example"}).status_code == 400
        assert client.get("/api/models").status_code == 403
        assert client.get("/api/models", params={"token": "wrong"}).status_code == 403
        assert client.get("/", params={"token": "s3cret"}, follow_redirects=False).status_code == 303
        assert client.get("/api/models").status_code == 200  # the cookie is kept
        cookie = client.get("/", params={"token": "s3cret"}, follow_redirects=False).headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2f..%2fdata/clothing64.npz",
        "/static//etc/passwd",
    ],
)
def test_nothing_outside_the_page_is_served(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json() == {"error": "Not Found"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"model": 9, "picture": "sample-0"}, 404),
        ({"model": 0, "picture": "sample-99"}, 404),
        ({"model": 0, "picture": "../../etc/passwd"}, 404),
        ({"model": 0, "step": 5, "picture": "sample-0"}, 404),
        ({"model": "timm:evil", "picture": "sample-0"}, 422),
        ({"model": -1, "picture": "sample-0"}, 422),
    ],
)
def test_models_and_pictures_come_from_the_server_s_list(client, body, status):
    answer = client.post("/api/inspections", json=body)
    assert answer.status_code == status
    assert "error" in answer.json()


@pytest.mark.parametrize("place", [{"row": 1.0, "col": 0.0}, {"row": -0.1, "col": 0.0}, {"row": "nan", "col": 0}, {}])
def test_queries_outside_the_picture(client, place):
    name = inspect(client).json()["id"]
    answer = client.get(f"/api/inspections/{name}/maps", params=place)
    assert answer.status_code == 422
    assert re.match(r"the request is not valid: query\.(row|col): .", answer.json()["error"])
    assert client.get("/api/inspections/unknown/maps", params={"row": 0, "col": 0}).status_code == 404


def test_a_queue_has_an_end(client, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_WAITING", 1)
    began, go_on = threading.Event(), threading.Event()
    true_inspect = store_module.inspect_picture

    def slow(*arguments):
        began.set()
        go_on.wait(30)
        return true_inspect(*arguments)

    monkeypatch.setattr(store_module, "inspect_picture", slow)
    first = threading.Thread(target=inspect, args=(client,))
    first.start()
    assert began.wait(30)
    answer = inspect(client, picture="sample-1")
    go_on.set()
    first.join(30)
    assert answer.status_code == 429
    assert inspect(client, picture="sample-1").status_code == 200


def test_old_inspections_make_room(sources, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_INSPECTION_BYTES", 3 * 2**20)
    store = store_module.Store(sources)
    first, inspection = store.inspect(0, None, "sample-0")
    assert inspection.num_bytes == 32 * 32 * 3 + (6 + 4 + 4) * 9 * 64**2 * 2
    for number in range(1, 4):
        last, _ = store.inspect(0, None, f"sample-{number}")
    with pytest.raises(KeyError, match="no longer kept"):
        store.inspection(first)
    assert store.inspection(last).picture.name


def test_guard_leaves_other_protocols_alone():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    asyncio.run(Guard(app, hosts=frozenset(), token=None, uploads={})({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]


def test_an_explorer_of_nothing_is_refused():
    with pytest.raises(ValueError, match="name what to explore"):
        make_app([])
