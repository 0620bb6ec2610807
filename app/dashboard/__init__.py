"""The pages: `router` is all that the application needs of them."""

from app.dashboard.routes import router

__all__ = ["router"]
