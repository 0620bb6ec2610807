"""A server with the parts of Kubernetes' API that actions use; there is no cluster behind it.

It follows the API's reference: merge patches replace lists and refuse an old ``resourceVersion``;
the conditions of a status are merged by type; an event's name is unique; lists
come in pages of ``limit`` items, and of nodes without their status if the request says so.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

TOKEN: Final = "token-of-a-service-account"  # noqa: S105 - of tests
MERGE: Final = "application/merge-patch+json"
METADATA_LIST: Final = "as=PartialObjectMetadataList"
PODS: Final = re.compile(r"/api/v1/namespaces/([^/]+)/pods")
STRATEGIC: Final = "application/strategic-merge-patch+json"
Answer = tuple[int, dict[str, Any]]


class Kubernetes:
    """A server of nodes and events, which runs while the context lasts."""

    def __init__(self, *names: str) -> None:
        self.nodes: dict[str, dict[str, Any]] = {
            name: {
                "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
                "spec": {},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }
            for name in names
        }
        # By namespace and name
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        # Items in a page at most, whatever the limit
        self.page = 500
        self.events: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str]] = []
        # How many times another client changes a node before a patch arrives
        self.changes = 0
        self.denied = False
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                size = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(size)) if size else {}
                media_type = self.headers.get("content-type", "")
                authorized = self.headers.get("authorization") == f"Bearer {TOKEN}"
                with owner._lock:
                    status, document = owner._take(
                        self.command, self.path, body, media_type, authorized=authorized
                    )
                    if METADATA_LIST in self.headers.get("accept", "") and status == 200:
                        items = document["items"]
                        document["items"] = [{"metadata": one["metadata"]} for one in items]
                sent = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            do_GET = do_PATCH = do_POST = _answer  # noqa: N815 - of the standard library

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def run(self, namespace: str, name: str, node: str, *, phase: str = "Running") -> str:
        """Let a pod run on a node; return its name as sessions give it."""
        self.pods[namespace, name] = {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"nodeName": node},
            "status": {"phase": phase},
        }
        return f"kubernetes/{namespace}/{name}"

    def taints(self, name: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.nodes[name]["spec"].get("taints", [])
        return found

    def condition(self, name: str) -> str | None:
        of = self.nodes[name]["status"]["conditions"]
        return next((one["status"] for one in of if one["type"] == "PacelineStraggler"), None)

    def change(self, name: str, spec: dict[str, Any]) -> None:
        """Change a node as another client would."""
        node = self.nodes[name]
        node["spec"].update(spec)
        self._is_newer(node)

    def _is_newer(self, node: dict[str, Any]) -> None:
        version = int(node["metadata"]["resourceVersion"]) + 1
        node["metadata"]["resourceVersion"] = str(version)

    def _take(  # noqa: C901, PLR0911, PLR0912 - one for each answer
        self, method: str, path: str, body: dict[str, Any], media_type: str, *, authorized: bool
    ) -> Answer:
        self.asked.append((method, path))
        if not authorized:
            return 401, {"reason": "Unauthorized"}
        if self.denied:
            return 403, {"reason": "Forbidden"}
        if (method, path) == ("POST", "/api/v1/namespaces/default/events"):
            if any(one["metadata"]["name"] == body["metadata"]["name"] for one in self.events):
                return 409, {"reason": "AlreadyExists"}
            self.events.append(body)
            return 201, body
        at = urlsplit(path)
        if method == "GET" and at.path == "/api/v1/nodes":
            return self._list(list(self.nodes.values()), at.query)
        if method == "GET" and (listed := PODS.fullmatch(at.path)):
            pods = [pod for (space, _), pod in self.pods.items() if space == listed[1]]
            if parse_qs(at.query).get("fieldSelector") == ["status.phase=Running"]:
                pods = [pod for pod in pods if pod["status"]["phase"] == "Running"]
            return self._list(pods, at.query)
        name, _, below = path.removeprefix("/api/v1/nodes/").partition("/")
        node = self.nodes.get(name)
        if node is None:
            return 404, {"reason": "NotFound"}
        if method == "GET":
            return 200, json.loads(json.dumps(node))
        if below == "status" and media_type == STRATEGIC:
            for one in body["status"]["conditions"]:
                of = node["status"]["conditions"]
                of[:] = [other for other in of if other["type"] != one["type"]] + [one]
            self._is_newer(node)
            return 200, node
        if below or media_type != MERGE:
            return 415, {"reason": "UnsupportedMediaType"}
        if self.changes:
            self.changes -= 1
            self._is_newer(node)
        if body["metadata"].get("resourceVersion") != node["metadata"]["resourceVersion"]:
            return 409, {"reason": "Conflict"}
        del body["metadata"]["resourceVersion"]
        _merge(node, body)
        self._is_newer(node)
        return 200, node

    def _list(self, items: list[dict[str, Any]], query: str) -> Answer:
        asked = parse_qs(query)
        begin = int(asked.get("continue", ["0"])[0])
        end = begin + min(self.page, int(asked["limit"][0]))
        more = {"continue": str(end)} if end < len(items) else {}
        return 200, {"metadata": more, "items": json.loads(json.dumps(items[begin:end]))}


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """Merge a patch by RFC 7386: lists are replaced, null deletes."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value
