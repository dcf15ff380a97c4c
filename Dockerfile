# The image of the durable-cache service: every backend, not root, needs to write only to /data.
#
#   docker build -t durable-cache .                                   all backends
#   docker build -t durable-cache --build-arg BACKENDS=postgres .     fewer; "" is SQLite alone
#
# Configuration: a file mounted at /etc/durable-cache/config.json5 and named by DURABLE_CACHE_CONFIG,
# or the DURABLE_CACHE_* variables. Data: one volume, /data.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG BACKENDS="postgres influxdb delta"
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements/ requirements/
RUN python3 -m venv /opt/tools \
 && /opt/tools/bin/pip install --quiet --require-hashes -r requirements/build.txt \
 && python3 -m venv --without-pip /opt/durable-cache \
 && for lock in run $BACKENDS; do \
      /opt/tools/bin/pip --python /opt/durable-cache/bin/python install --quiet --require-hashes \
        -r "requirements/$lock.txt" || exit 1; \
    done
COPY pyproject.toml README.md LICENSE ./
COPY LICENSES/ LICENSES/
COPY durable_cache/ durable_cache/
COPY backends/ backends/
COPY migrations/ migrations/
RUN /opt/tools/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/tools/bin/pip --python /opt/durable-cache/bin/python install --quiet --no-deps /wheels/*.whl

FROM ${PYTHON_IMAGE} AS service
LABEL org.opencontainers.image.title="durable-cache" \
      org.opencontainers.image.description="Durable history for Eclipse Zenoh" \
      org.opencontainers.image.licenses="EPL-2.0 OR Apache-2.0"
RUN groupadd --gid 10001 durable-cache \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin durable-cache \
 && install -d -o 10001 -g 10001 -m 0750 /data \
 && install -d /etc/durable-cache
COPY --from=build /opt/durable-cache /opt/durable-cache
ENV PATH=/opt/durable-cache/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DURABLE_CACHE_STATE_DIR=/data \
    DURABLE_CACHE_HTTP=0.0.0.0:8080
WORKDIR /data
VOLUME /data
EXPOSE 7447 8080
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
ENTRYPOINT ["durable-cache"]
CMD ["serve"]
