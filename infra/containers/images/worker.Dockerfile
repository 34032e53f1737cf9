# The workers' image, for CPU and GPU: it compiles, verifies, signs and registers. From the
# repository:
#
#   docker build -f infra/containers/images/worker.Dockerfile -t handoff-worker:0.2.0 .
#
# One image serves both, since a CPU worker that compiles for an absent GPU needs the same torch.
# Of the GPU's driver nothing is in it: the engine's NVIDIA runtime puts that in. Where only CPU
# targets are built, TORCH_LOCK names a lock of PyTorch's CPU build, about 4 GB less:
#
#   uv pip compile --torch-backend cpu --generate-hashes ... -o infra/containers/images/torch-cpu.lock
#   docker build --build-arg TORCH_LOCK=infra/containers/images/torch-cpu.lock ...
ARG BASE=docker.io/library/python:3.11.14-slim-bookworm
FROM ${BASE}

ENV PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/venv/bin:$PATH

# g++ is AOTInductor's compiler, and C's for Triton; git fetches deliveries. Debian keeps one
# version of a package at a time, so that a pinned one would fail after a point release.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates g++ git tini \
 && rm -rf /var/lib/apt/lists/*

# As the Makefile does: hash-pinned locks, nothing resolved. In an order in which a change of the
# code leaves the large layers alone.
ARG TORCH_LOCK=requirements-torch.lock
WORKDIR /opt/handoff
COPY ${TORCH_LOCK} /tmp/torch.lock
RUN python3 -m venv /opt/venv \
 && pip install --no-cache-dir --require-hashes --no-deps --only-binary :all: -r /tmp/torch.lock
COPY requirements.lock infra/containers/images/build.lock /tmp/
RUN pip install --no-cache-dir --require-hashes --no-deps --only-binary :all: \
      -r /tmp/requirements.lock -r /tmp/build.lock \
 && rm /tmp/*.lock
COPY pyproject.toml hatch_build.py README.md ./
COPY handoff handoff
COPY artifacts artifacts
COPY tasks tasks
COPY flows flows
COPY infra infra
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable . \
 && python -m compileall -q artifacts tasks flows infra

# A number, so that Kubernetes can tell that it isn't root. The home is a volume's: state, builds,
# and the folder that steps are kept from (infra/engine/landlock.py), which is why it isn't below /tmp.
RUN groupadd --gid 10001 handoff \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/handoff --shell /usr/sbin/nologin handoff \
 && install --directory --owner 10001 --group 10001 --mode 0700 /var/lib/handoff
ENV HOME=/var/lib/handoff HANDOFF_HOME=/var/lib/handoff/home CXX=g++
WORKDIR /var/lib/handoff
USER 10001:10001

ENTRYPOINT ["tini", "--", "handoff"]
CMD ["worker", "--pool", "handoff-build"]
