"""What every endpoint works with: the engine's service, the reader of prompts, and threads for both."""

from dataclasses import dataclass, field

from pilotfish.engine.service import Service
from pilotfish.server.desk import Desk
from pilotfish.server.metrics import ServerMetrics
from pilotfish.server.prompts import PromptReader
from pilotfish.server.settings import ServerSettings


@dataclass(slots=True)
class Serving:
    """What every endpoint works with; `app.state.serving`.

    Attributes:
        created: when the server started, in seconds since 1970.
        reading: reads prompts.
        submitting: gives requests to the engine.
        compiling: the same for those with a grammar, which may take its time to compile; the others do not wait for it.
        draining: no more requests are taken.
    """

    service: Service
    reader: PromptReader
    settings: ServerSettings
    metrics: ServerMetrics
    created: int
    draining: bool = False
    reading: Desk = field(default_factory=lambda: Desk(2, "reading"))
    submitting: Desk = field(default_factory=lambda: Desk(1, "submitting"))
    compiling: Desk = field(default_factory=lambda: Desk(4, "compiling"))

    def close(self) -> None:
        """Ends the threads."""
        for desk in (self.reading, self.submitting, self.compiling):
            desk.close()
