"""The deployment files, checked without Docker, which some test machines lack."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from app.platform.settings import Settings
from tests.support.command import paceline

ROOT: Final = Path(__file__).parents[2]
# Services with our own image, and with images of others.
OURS: Final = ("migrate", "api", "worker")
DURABLE: Final = ("postgres",)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


@pytest.fixture(scope="module")
def dockerfile() -> list[tuple[str, str]]:
    """Return the instructions of the last stage, each with its arguments."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    instructions = [tuple(line.split(maxsplit=1)) for line in lines]
    last = max(at for at, (name, _) in enumerate(instructions) if name == "FROM")
    return [(name, arguments) for name, arguments in instructions[last:]]


def of(dockerfile: list[tuple[str, str]], name: str) -> list[str]:
    return [arguments for instruction, arguments in dockerfile if instruction == name]


def test_ports_are_published_on_loopback_only(compose: dict[str, Any]) -> None:
    published = [
        port for service in compose["services"].values() for port in service.get("ports", [])
    ]

    assert published
    assert all(str(port).startswith("127.0.0.1:") for port in published)


def test_databases_are_reachable_from_the_other_containers_only(compose: dict[str, Any]) -> None:
    for name in ("postgres", "redis"):
        assert "ports" not in compose["services"][name]
        assert compose["services"][name]["networks"] == ["backend"]
    assert compose["networks"]["backend"]["internal"] is True


def test_workers_can_send_alerts_and_read_their_channels_secrets(compose: dict[str, Any]) -> None:
    api, worker = compose["services"]["api"], compose["services"]["worker"]
    internal = {
        name for name, network in compose["networks"].items() if (network or {}).get("internal")
    }

    assert set(worker["networks"]) - internal
    assert worker["environment"]["PACELINE_SECRET_KEYS"].startswith("${PACELINE_SECRET_KEYS:?")
    for name in ("PACELINE_SECRET_KEYS", "PACELINE_EXTERNAL_URL"):
        assert api["environment"][name] == worker["environment"][name]


def test_who_reads_and_writes_blobs_reaches_the_object_store(compose: dict[str, Any]) -> None:
    internal = {
        name for name, network in compose["networks"].items() if (network or {}).get("internal")
    }

    for name in ("api", "worker"):
        service = compose["services"][name]
        assert service["environment"]["PACELINE_BLOB_URL"] == "${PACELINE_BLOB_URL:-}"
        assert set(service["networks"]) - internal, name


def test_compiled_loops_are_kept_where_a_worker_may_write(
    compose: dict[str, Any], dockerfile: list[tuple[str, str]]
) -> None:
    image = dict(word.split("=", 1) for line in of(dockerfile, "ENV") for word in shlex.split(line))
    mounted = [volume.split(":")[1] for volume in compose["services"]["worker"]["volumes"]]

    assert any(Path(image["NUMBA_CACHE_DIR"]).is_relative_to(path) for path in mounted)


def test_every_service_that_stays_has_a_health_check(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if name == "migrate":
            assert service["healthcheck"] == {"disable": True}
        elif name != "api":  # the image's own check
            assert service["healthcheck"]["test"], name


def test_nothing_starts_before_the_schema_is_there(compose: dict[str, Any]) -> None:
    services = compose["services"]

    assert services["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    for name in ("api", "worker"):
        assert services[name]["depends_on"]["migrate"] == {
            "condition": "service_completed_successfully"
        }
        assert services[name]["depends_on"]["redis"] == {"condition": "service_healthy"}


def test_the_schema_is_brought_up_once_and_the_rest_comes_back(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["restart"] == ("no" if name == "migrate" else "unless-stopped"), name


def test_the_image_is_built_with_the_documentation() -> None:
    allowed = (ROOT / ".dockerignore").read_text().split()

    assert "mkdocs build" in (ROOT / "Dockerfile").read_text()
    config = (ROOT / "mkdocs.yml").read_text()
    hooks = re.findall(r"^hooks: \[(.*)\]$", config, re.MULTILINE)
    assert len(hooks) == 1
    for needed in ("docs", "frontend", "mkdocs.yml", *hooks):
        assert f"!{needed}" in allowed, needed
        assert (ROOT / needed).exists(), needed


def test_the_compose_file_holds_no_secret(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for variable, value in service.get("environment", {}).items():
            if re.search("(PASSWORD|TOKEN|SECRETS?|KEYS?)$", variable):
                # A variable is either required or empty by default.
                assert re.fullmatch(r"\$\{\w+:(\?[^}]+|-)\}", value), (name, variable)
            for user_info in re.findall(r"://([^@/]*)@", str(value)):
                _, _, password = user_info.partition(":")
                assert re.match(r"\$\{(POSTGRES|REDIS)_PASSWORD:\?", password), (name, variable)


def test_the_example_of_an_environment_holds_no_secret_and_the_real_one_is_ignored() -> None:
    example = dict(
        line.split("=", 1)
        for line in (ROOT / ".env.example").read_text().splitlines()
        if line and not line.startswith("#")
    )

    for name in (
        "POSTGRES_PASSWORD",
        "REDIS_PASSWORD",
        "PACELINE_SECRET_KEYS",
        "PACELINE_BLOB_SECRET_ACCESS_KEY",
    ):
        assert example[name] == ""
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_containers_have_no_privileges_and_a_read_only_root(compose: dict[str, Any]) -> None:
    for name in OURS:
        service = compose["services"][name]
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "/tmp" in service["tmpfs"], name  # noqa: S108 - of the container
        assert "user" not in service, name


def test_persistent_data_is_in_named_volumes(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        mounted = [str(volume).split(":", 1)[0] for volume in service.get("volumes", [])]
        assert set(mounted) <= set(compose["volumes"]), name
    for name in DURABLE:
        assert compose["services"][name]["volumes"]


def test_the_commands_of_the_services_exist(
    compose: dict[str, Any], dockerfile: list[tuple[str, str]]
) -> None:
    assert json.loads(of(dockerfile, "ENTRYPOINT")[0]) == ["paceline"]
    commands = [compose["services"][name]["command"] for name in OURS]
    commands.append(json.loads(of(dockerfile, "CMD")[0]))

    for command in commands:
        shown = paceline(*command, "--help")
        assert shown.returncode == 0, (command, shown.stderr)


def test_the_settings_of_the_services_are_known_and_valid(
    compose: dict[str, Any],
    dockerfile: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = dict(word.split("=", 1) for line in of(dockerfile, "ENV") for word in shlex.split(line))
    known = {f"PACELINE_{name.upper()}" for name in Settings.model_fields}

    for name in OURS:
        environment = image | compose["services"][name]["environment"]
        ours = {key: value for key, value in environment.items() if key.startswith("PACELINE_")}
        assert set(ours) <= known, name
        with monkeypatch.context() as patch:
            for key, value in ours.items():
                patch.setenv(key, re.sub(r"\$\{\w+(?::[-?]([^}]*))?\}", r"\1", value))
            patch.setenv("PACELINE_SECRET_KEYS", "0" * 43 + "=")
            settings = Settings()
        assert settings.data_dir == Path("/var/lib/paceline")
        assert settings.broker_url is not None
        # Variables that .env does not contain are unset.
        assert (settings.blob_url, settings.blob_secret_access_key) == (None, None)
        assert re.fullmatch(r"redis://:[^@]+@redis:6379/0", settings.broker_url)
        # Only the migration, which creates the token, gets its file.
        assert (settings.admin_token_file is not None) is (name == "migrate")


def test_every_image_of_others_is_named_by_its_digest(compose: dict[str, Any]) -> None:
    images = [service["image"] for name, service in compose["services"].items() if name not in OURS]
    images += re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)

    assert len(images) == 4
    assert [image for image in images if not re.search(r"@sha256:[0-9a-f]{64}$", image)] == []


def test_the_broker_wants_a_password(compose: dict[str, Any]) -> None:
    redis = compose["services"]["redis"]

    assert "requirepass" in redis["command"][-1]
    # Process lists would show a password in the command.
    assert "${REDIS_PASSWORD" not in redis["command"][-1].replace("$$", "")
    assert redis["environment"]["REDIS_PASSWORD"].startswith("${REDIS_PASSWORD:?")


def test_the_published_port_is_the_one_that_the_server_listens_on(
    compose: dict[str, Any], dockerfile: list[tuple[str, str]]
) -> None:
    port = str(Settings.model_fields["port"].default)

    assert of(dockerfile, "EXPOSE") == [port]
    assert [published.rsplit(":", 1)[1] for published in compose["services"]["api"]["ports"]] == [
        port
    ]


def test_the_image_runs_as_a_numbered_user_who_is_not_root(
    dockerfile: list[tuple[str, str]],
) -> None:
    (user,) = of(dockerfile, "USER")
    uid, gid = user.split(":")

    assert int(uid) > 0
    assert int(gid) > 0


def test_the_image_s_stop_signal_is_one_that_the_commands_handle(
    dockerfile: list[tuple[str, str]],
) -> None:
    # Without a shell, which would not pass on the signal.
    assert of(dockerfile, "STOPSIGNAL") == ["SIGTERM"]
    assert of(dockerfile, "ENTRYPOINT")[0].startswith("[")


def test_the_images_health_check_is_a_program_that_runs(
    dockerfile: list[tuple[str, str]],
) -> None:
    (check,) = of(dockerfile, "HEALTHCHECK")
    program, option, code = json.loads(check[check.index("[") :])

    assert (program, option) == ("python", "-c")
    compile(code, "HEALTHCHECK", "exec")
    assert "/healthz" in code
    assert f"'127.0.0.1', {Settings.model_fields['port'].default}" in code


def test_everything_that_the_image_is_built_from_is_let_into_the_build() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in ignored if line.startswith("!")}

    assert "*" in ignored
    assert {"pyproject.toml", "README.md", "LICENSE", "requirements"} <= let_in
    assert {"app", "client", "workers", "migrations", "frontend"} <= let_in
    assert all((ROOT / name).exists() for name in let_in)


def test_docker_itself_accepts_the_compose_file() -> None:
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run(  # noqa: S603 - found on PATH
            [docker, "compose", "version"], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("there is no docker compose here")

    shown = subprocess.run(  # noqa: S603 - found on PATH
        [docker, "compose", "--file", ROOT / "docker-compose.yml", "config", "--quiet"],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ
        | {"POSTGRES_PASSWORD": "test", "PACELINE_SECRET_KEYS": "test", "REDIS_PASSWORD": "test"},
    )

    assert shown.returncode == 0, shown.stderr
