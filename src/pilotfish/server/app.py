"""Puts the server together: one engine service behind one ASGI application."""

import time

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import pilotfish
from pilotfish.engine.llm import LLM
from pilotfish.engine.service import Service
from pilotfish.server.departure import ClientGoneError, on_client_gone
from pilotfish.server.errors import on_http_error, on_invalid_body
from pilotfish.server.gate import Gate
from pilotfish.server.metrics import ServerMetrics
from pilotfish.server.page import page_routes
from pilotfish.server.prompts import PromptReader
from pilotfish.server.routes import router
from pilotfish.server.serving import Serving
from pilotfish.server.settings import ServerSettings


def create_app(llm: LLM, service: Service, settings: ServerSettings, *, name: str) -> FastAPI:
    """The application over a running service; closing the service is its owner's.

    Args:
        llm: the model whose engine the service runs.
        name: what clients call the model.
    """
    metrics = ServerMetrics(service.stats)
    app = FastAPI(
        title="Pilotfish",
        version=pilotfish.__version__,
        description="OpenAI's completions and chat over lossless speculative decoding.",
        docs_url=None,  # those pages load scripts from elsewhere
        redoc_url=None,
    )
    app.state.settings = settings
    app.state.serving = Serving(service, PromptReader(llm, name, settings), settings, metrics, int(time.time()))
    app.include_router(router)
    pages = page_routes()
    app.router.routes.extend(pages)
    app.add_exception_handler(RequestValidationError, on_invalid_body)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientGoneError, on_client_gone)
    app.add_middleware(Gate, settings=settings, metrics=metrics, open_paths=[page.path for page in pages])
    return app
