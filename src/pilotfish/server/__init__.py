"""The HTTP server: OpenAI's protocol over one engine.

Owns what goes over the wire: request and response bodies, errors, limits, streams, metrics. Knows no model and no
round; the engine is one `Service`, which runs on a thread of its own. `app.py` puts the parts together.
"""
