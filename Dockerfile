# Brand in a container: the command `brand`, and PyTorch to train with. Its user is not root.
#
#   docker build -t brand:0.2.0 .                                                      PyTorch as PyPI has it, with CUDA
#   docker build -t brand:0.2.0 --build-arg TORCH="torch --index-url URL" .            another build of it: CPU, ROCm
#   docker build -t brand:0.2.0 --build-arg TORCH= --build-arg EXTRAS=cloud,audio .    no PyTorch: to convert and copy
#
# It takes packages from the registries of Debian and PyPI, and from nowhere else. docs/guides/install.md says more.
ARG BASE=debian:trixie-slim

FROM ${BASE} AS build
ARG TORCH=torch
ARG EXTRAS=train,audio,cloud
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv python3-dev gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/brand
# PyTorch first: this layer is large, and a change of Brand does not make it again.
RUN test -z "${TORCH}" || /opt/brand/bin/python -m pip install ${TORCH}
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY brand brand
RUN /opt/brand/bin/python -m pip install ".[${EXTRAS}]"

FROM ${BASE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --shell /usr/sbin/nologin brand \
    && install --directory --owner=brand --group=brand /data
COPY --from=build /opt/brand /opt/brand
# A container may run with a read-only root: profiles of storages and copies of indices go to /tmp.
ENV PATH=/opt/brand/bin:${PATH} PYTHONUNBUFFERED=1 XDG_CACHE_HOME=/tmp/cache
USER 10001:10001
WORKDIR /data
# The image is not made where Brand does not work in it.
RUN ["brand", "doctor"]
CMD ["brand", "--help"]
