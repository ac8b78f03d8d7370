"""The explorer's web server: a static page and a small interface of JSON and float16."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from io import BytesIO
from typing import Annotated

import numpy as np
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from PIL import Image
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as StarletteHTTPException

from nearsight.explorer.decoder import MAX_BODY, Decoder
from nearsight.explorer.guard import Guard, is_every_address, is_loopback
from nearsight.explorer.sources import Source
from nearsight.explorer.store import BusyError, Store
from nearsight.images.imageset import BadImage

UPLOAD = "/api/pictures"
THUMBNAIL = 96
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

Share = Annotated[float, Query(ge=0, lt=1)]


class InspectionRequest(BaseModel):
    """A model and a picture by their ids; nothing here is a path or an address."""

    model: int = Field(ge=0)
    step: int | None = Field(default=None, ge=0)
    picture: str = Field(max_length=40)


def make_app(
    sources: Sequence[Source],
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    samples: Sequence[tuple[str, np.ndarray]] | None = None,
) -> FastAPI:
    """The application for these models. A host other than this machine needs a token.

    samples: pictures (name, uint8 [H, W, 3]) to choose from; bundled ones by default.
    """
    if not sources:
        raise ValueError("name what to explore: a run folder or a model")
    if not is_loopback(host) and not token:
        raise ValueError(f"serving on {host} lets other machines in, which needs a token")
    store = Store(sources, samples)
    decoder = Decoder()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        decoder.close()

    app = FastAPI(title="nearsight explorer", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    hosts = None if is_every_address(host) else LOOPBACK | {host.lower()}
    app.add_middleware(Guard, hosts=hosts, token=token, uploads={UPLOAD: MAX_BODY})
    page = files("nearsight.explorer") / "static"

    @app.exception_handler(StarletteHTTPException)
    async def answer_error(request: Request, error: StarletteHTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, status_code=error.status_code)

    @app.exception_handler(RequestValidationError)
    async def answer_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        return JSONResponse({"error": f"the request is not valid: {field}: {first['msg']}"}, status_code=422)

    @app.get("/")
    def index() -> Response:
        return FileResponse(str(page / "index.html"))

    @app.get("/api/models")
    def models() -> list[dict]:
        return store.describe_models()

    @app.get("/api/samples")
    def list_samples() -> list[dict]:
        return [{"id": f"sample-{index}", "name": sample.name} for index, sample in enumerate(store.samples)]

    @app.get("/api/pictures/{picture_id}/thumbnail")
    def thumbnail(picture_id: str) -> Response:
        pixels = _found(store.picture, picture_id).pixels
        side = min(pixels.shape[:2])
        top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
        image = Image.fromarray(pixels[top : top + side, left : left + side]).resize((THUMBNAIL, THUMBNAIL))
        return _png(np.asarray(image))

    @app.post(UPLOAD)
    async def upload(request: Request, name: Annotated[str, Query(max_length=200)] = "picture") -> dict:
        try:
            with store.upload_place():  # before the body is read: so many are in memory at most
                pixels = await asyncio.to_thread(decoder.decode, await request.body(), name)
        except BusyError as error:
            raise HTTPException(429, str(error)) from None
        except BadImage as error:
            raise HTTPException(415, str(error)) from None
        return {"id": store.add_picture(name, pixels), "name": name}

    @app.post("/api/inspections")
    def inspect(wanted: InspectionRequest) -> dict:
        try:
            inspection_id, inspection = store.inspect(wanted.model, wanted.step, wanted.picture)
        except KeyError as error:
            raise HTTPException(404, error.args[0]) from None
        except BusyError as error:
            raise HTTPException(429, str(error)) from None
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        return {"id": inspection_id, **inspection.describe()}

    @app.get("/api/inspections/{inspection_id}/picture")
    def picture(inspection_id: str) -> Response:
        return _png(_found(store.inspection, inspection_id).picture.pixels)

    @app.get("/api/inspections/{inspection_id}/maps")
    async def maps(inspection_id: str, row: Share, col: Share) -> Response:
        # Reading a few rows takes less than handing the request to another thread.
        content = _found(store.inspection, inspection_id).maps_at(row, col)
        return Response(content, media_type="application/octet-stream")

    app.mount("/static", StaticFiles(directory=str(page)), name="static")
    return app


def _found(look_up, key: str):
    try:
        return look_up(key)
    except KeyError as error:
        raise HTTPException(404, error.args[0]) from None


def _png(pixels: np.ndarray) -> Response:
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return Response(buffer.getvalue(), media_type="image/png")
