# Penstock's images, one target each:
#   docker build --target router -t penstock/router .      in the repository's root, with any builder
# Targets: operator, router, picker, sidecar, simulator, vllm-plugin. Pin each base by digest:
#   --build-arg RUNTIME=gcr.io/distroless/python3-debian13:nonroot@sha256:...
ARG UV=ghcr.io/astral-sh/uv:0.13.9
ARG BUILD=docker.io/library/debian:13-slim
ARG RUNTIME=gcr.io/distroless/python3-debian13:nonroot
ARG PLUGIN_RUNTIME=docker.io/library/busybox:1.37.0-musl

FROM ${UV} AS uv

FROM ${BUILD} AS build
RUN apt-get update -qq && apt-get install -qq --no-install-recommends binutils ca-certificates python3
COPY --from=uv /uv /usr/local/bin/uv
COPY . /src

FROM ${RUNTIME} AS runtime
ARG VERSION=dev
LABEL org.opencontainers.image.version="${VERSION}"
ENV PATH=/opt/penstock/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532

# For processes that plan batches: their compiled loops are in the image.
FROM build AS build-compiled
ENV NUMBA_CPU_NAME=generic \
    NUMBA_CACHE_DIR=/opt/penstock/compiled \
    NUMBA_CACHE_LOCATOR_CLASSES=penstock_core.compilation.cache.ShippedCacheLocator

FROM runtime AS runtime-compiled
ENV NUMBA_CPU_NAME=generic \
    NUMBA_CACHE_DIR=/opt/penstock/compiled \
    NUMBA_CACHE_LOCATOR_CLASSES=penstock_core.compilation.cache.ShippedCacheLocator

FROM build AS build-operator
RUN --mount=type=cache,target=/root/.cache/uv /src/images/install penstock-operator penstock-operator

FROM runtime AS operator
LABEL org.opencontainers.image.title="penstock-operator" \
      org.opencontainers.image.description="Kubernetes operator: reconciles ServingPools with their objects, reports status, scales replicas"
COPY --from=build-operator /opt/penstock /opt/penstock
ENTRYPOINT ["penstock-operator"]

FROM build AS build-router
RUN --mount=type=cache,target=/root/.cache/uv /src/images/install penstock-router penstock-router

FROM runtime AS router
LABEL org.opencontainers.image.title="penstock-router" \
      org.opencontainers.image.description="OpenAI-compatible router: tries replicas in order until one admits the request"
COPY --from=build-router /opt/penstock /opt/penstock
ENTRYPOINT ["penstock-router"]

FROM build AS build-picker
RUN --mount=type=cache,target=/root/.cache/uv /src/images/install penstock-picker penstock-picker

FROM runtime AS picker
LABEL org.opencontainers.image.title="penstock-picker" \
      org.opencontainers.image.description="Endpoint picker: gives a gateway the replicas for a request, in order"
COPY --from=build-picker /opt/penstock /opt/penstock
ENTRYPOINT ["penstock-picker"]

FROM build-compiled AS build-sidecar
RUN --mount=type=cache,target=/root/.cache/uv /src/images/install penstock-sidecar penstock-sidecar

FROM runtime-compiled AS sidecar
LABEL org.opencontainers.image.title="penstock-sidecar" \
      org.opencontainers.image.description="Sidecar of an engine: admits and forwards requests, streams tokens, reports state, drains"
COPY --from=build-sidecar /opt/penstock /opt/penstock
ENTRYPOINT ["penstock-sidecar"]

FROM build-compiled AS build-simulator
RUN --mount=type=cache,target=/root/.cache/uv /src/images/install penstock-simulator penstock-engine

FROM runtime-compiled AS simulator
LABEL org.opencontainers.image.title="penstock-simulator" \
      org.opencontainers.image.description="Simulated engine: OpenAI API with the timing of a GPU, for machines without GPUs"
COPY --from=build-simulator /opt/penstock /opt/penstock
ENTRYPOINT ["penstock-engine"]

# Penstock's scheduler for vLLM: an init container copies it beside an unmodified vLLM, whose PYTHONPATH names it.
# It has only Python sources, so it runs on any CPython of vLLM's image; vLLM has their dependencies. The base provides
# `cp`. A checkout's files may be unreadable to others, so their modes are set.
FROM ${PLUGIN_RUNTIME} AS vllm-plugin
ARG VERSION=dev
LABEL org.opencontainers.image.title="penstock-vllm-plugin" \
      org.opencontainers.image.description="Penstock's scheduler for vLLM, copied into its container" \
      org.opencontainers.image.version="${VERSION}"
COPY --chmod=755 core/src proto/src vllm-plugin/src /plugin/
USER 65532:65532
ENTRYPOINT ["cp", "-r", "/plugin/.", "/opt/penstock"]
