# Paceline's image: API, dashboard, workers and migrations, by command (`serve`, `worker`, `migrate`).
# It runs as an unprivileged user and writes only to /tmp and /var/lib/paceline, so the root file
# system may be read-only. PostgreSQL and Redis are containers of their own: docker-compose.yml.
# The base is named by its digest, so that two builds have the same one; `docker buildx imagetools
# inspect python:3.13-slim` says the present one, to be taken with each release.

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements/build.txt requirements/docs.txt requirements/image.txt requirements/
RUN pip install --require-hashes --no-deps -r requirements/build.txt -r requirements/docs.txt \
    && python -m venv /opt/paceline \
    && /opt/paceline/bin/pip install --require-hashes --no-deps -r requirements/image.txt
COPY . .
# The pages of fields are generated from the types of the program, which import what it needs.
RUN PYTHONPATH=/build:$(echo /opt/paceline/lib/python3*/site-packages) mkdocs build --quiet \
    && pip wheel --no-deps --no-build-isolation --wheel-dir dist ./client . \
    && /opt/paceline/bin/pip install --no-deps --no-index dist/*.whl \
    && /opt/paceline/bin/python -m compileall -q /opt/paceline

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b
LABEL org.opencontainers.image.title="Paceline" \
      org.opencontainers.image.description="Online straggler monitor for LLM training" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/paceline /opt/paceline
# The owner of a volume's mount point becomes the owner of a fresh named volume.
RUN install --directory --owner=10001 --group=10001 --mode=0750 /var/lib/paceline \
    && install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/paceline-admin
ENV PATH=/opt/paceline/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    PACELINE_DATA_DIR=/var/lib/paceline \
    PACELINE_LOG_JSON=true \
    NUMBA_CACHE_DIR=/var/lib/paceline/compiled
# A number, so that orchestrators can check that it is not root.
USER 10001:10001
WORKDIR /var/lib/paceline
EXPOSE 8765
# The commands handle SIGTERM themselves as process 1: they finish requests and give leases back.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "from http.client import HTTPConnection as C; c = C('127.0.0.1', 8765, timeout=4); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["paceline"]
CMD ["serve"]
