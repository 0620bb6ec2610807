"""The broker: a Celery application without tasks, for who publishes and for who works.

The broker is a nudge and nothing else. Every message is the id of a row of `task_run`; a message
that is lost, doubled or late costs at most the time until the sweeper's next pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from celery import Celery
from kombu import Queue
from kombu.transport import TRANSPORT_ALIASES

if TYPE_CHECKING:
    from app.settings import Settings

TASK_NAME: Final = "paceline.run"
ANALYSIS_QUEUE: Final = "analysis"
IO_QUEUE: Final = "io"
QUEUES: Final = (ANALYSIS_QUEUE, IO_QUEUE)

FILES_SCHEME: Final = "paceline-files"
FILES_URL: Final = f"{FILES_SCHEME}://localhost/"

# What a person sees as "at once"; listing an empty directory ten times a second costs nothing.
FILES_POLLING_INTERVAL_S: Final = 0.1

# A broker that is gone must not hold the one publishing thread, and with it the process's exit,
# for the minutes that TCP takes to give up.
CONNECT_TIMEOUT_S: Final = 3.0

# Redis hands an unacknowledged message to another worker after this time. Shorter than an analysis
# may take, every long one would be nudged again and again; the claim makes that harmless, not free.
REDIS_VISIBILITY_TIMEOUT_S: Final = 3600


def make_celery(settings: Settings) -> Celery:
    """Return the one Celery application: only the broker's address differs between modes.

    Parameters
    ----------
    settings : Settings
        `broker_url`, or None for files in `data_dir`.
    """
    celery = Celery("paceline", set_as_current=False)
    celery.conf.update(
        task_queues=[
            # On the default exchange nothing has to be bound: two workers that start at the same
            # time would overwrite each other's bindings in the files broker.
            Queue(name, exchange="", routing_key=name)
            for name in QUEUES
        ],
        task_default_queue=ANALYSIS_QUEUE,
        task_default_exchange="",
        task_default_routing_key=ANALYSIS_QUEUE,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        # A worker that is killed leaves its message to the next one.
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        # A message taken in advance would wait behind a long analysis while others are idle.
        worker_prefetch_multiplier=1,
        # One try: the caller has a circuit breaker and the sweeper behind it.
        task_publish_retry=False,
        broker_connection_timeout=CONNECT_TIMEOUT_S,
        # A worker waits for its broker however long that takes; the sweeper needs none.
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        **_transport(settings),
    )
    return celery


def _transport(settings: Settings) -> dict[str, Any]:
    if settings.broker_url is not None:
        return {
            "broker_url": settings.broker_url,
            "broker_transport_options": {
                "visibility_timeout": REDIS_VISIBILITY_TIMEOUT_S,
                "socket_connect_timeout": CONNECT_TIMEOUT_S,
                "socket_timeout": CONNECT_TIMEOUT_S,
                # Publishing must fail, not wait, when Redis is gone.
                "retry_on_timeout": False,
            },
        }
    TRANSPORT_ALIASES[FILES_SCHEME] = "app.broker.files:Transport"
    folder = settings.data_dir / "broker"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        "broker_url": FILES_URL,
        "broker_transport_options": {
            "data_folder_in": str(folder),
            "data_folder_out": str(folder),
            "control_folder": str(folder / "control"),
            "polling_interval": FILES_POLLING_INTERVAL_S,
        },
    }
