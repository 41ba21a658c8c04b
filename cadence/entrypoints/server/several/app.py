"""The application of several models: one set of routes, a door before them, and endpoints about all of them."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI

from cadence.config.server.serve_options import ServeOptions
from cadence.entrypoints.server.app import ROUTES, Layer, add_layers, new_app
from cadence.entrypoints.server.http.body_limits import BodyLimits
from cadence.entrypoints.server.routes import adapters, develop, engine_state, health, metrics, models, tokenize
from cadence.entrypoints.server.several import metrics as all_metrics
from cadence.entrypoints.server.several import routes as all_models
from cadence.entrypoints.server.several.door import ModelDoor, RoutePaths
from cadence.entrypoints.server.several.models import ServedModels

OWN_HERE = (health, models, metrics)  # groups of endpoints that this application has its own of


def create_models_app(served: ServedModels, options: ServeOptions) -> FastAPI:
    shared = [routes.router for routes in ROUTES if routes not in OWN_HERE]
    app = new_app(options, [all_models.health_router, all_models.router, all_metrics.router, *shared])
    app.state.served = served
    working = [router for router in shared if router is not engine_state.router]
    working += [tokenize.info_router] if options.enable_tokenizer_info_endpoint else []
    working += [adapters.router] if options.allow_runtime_lora_updating else []
    looking = [engine_state.router, *([develop.router] if options.server_dev_mode else [])]
    paths = RoutePaths(working, looking)
    innermost: list[Layer] = [partial(ModelDoor, models=served, paths=paths), partial(BodyLimits, options=options)]
    add_layers(app, options, served.parts.tenants, innermost, served.metrics_of)
    return app
