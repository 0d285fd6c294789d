"""What is mounted beside the API and watches it: metrics and the dashboard, over one history."""

from __future__ import annotations

from fastapi import FastAPI

from . import dashboard, metrics
from .history import History
from .state import ServerState


def install(app: FastAPI, state: ServerState) -> None:
    """Mount both, and record from the start of the app to its end."""
    history = History(state)
    state.background.append(history.run)
    metrics.install(app, state, history)
    dashboard.install(app, state, history)
