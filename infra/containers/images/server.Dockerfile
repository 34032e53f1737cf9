# The servers' image: Prefect's, MLflow's, and what prepares their stores. From the repository:
#
#   docker build -f infra/containers/images/server.Dockerfile -t handoff-server:0.2.0 .
#
# It holds no torch and nothing of Handoff but prepare.py. Each service says its command.
ARG BASE=docker.io/library/python:3.11.14-slim-bookworm
FROM ${BASE}

ENV PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/venv/bin:$PATH

# tini reaps what a server leaves behind, also where the engine starts no init of its own. Debian
# keeps one version of a package at a time, so that a pinned one would fail after a point release.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates tini \
 && rm -rf /var/lib/apt/lists/*

COPY infra/containers/images/server.lock /tmp/server.lock
RUN python3 -m venv /opt/venv \
 && pip install --no-cache-dir --require-hashes --no-deps --only-binary :all: -r /tmp/server.lock \
 && rm /tmp/server.lock

COPY infra/containers/prepare.py /opt/stack/prepare.py
COPY infra/containers/images/basic_auth.ini /opt/stack/basic_auth.ini

# A number, so that Kubernetes can tell that it isn't root.
RUN groupadd --gid 10001 handoff \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/stack --shell /usr/sbin/nologin handoff \
 && install --directory --owner 10001 --group 10001 --mode 0700 /var/lib/stack
ENV HOME=/var/lib/stack
WORKDIR /var/lib/stack
USER 10001:10001

ENTRYPOINT ["tini", "--"]
CMD ["prefect", "version"]
