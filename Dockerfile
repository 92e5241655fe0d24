# syntax=docker/dockerfile:1
# Davenport's three programs and nothing else, run as a non-root user.
#
#   docker build -t davenport .
#   docker build -t davenport --build-arg FDB_CLIENT=no .      without FoundationDB's client library, for lmdb: stores

ARG RUST_VERSION=1.95.0
ARG FDB_VERSION=7.3.63
ARG FDB_CLIENT=yes

FROM docker.io/library/rust:${RUST_VERSION}-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc g++ libc6-dev make && rm -rf /var/lib/apt/lists/*
WORKDIR /davenport
COPY . .
# arm64 kernels use pages of 4 to 64 KiB; the allocator supports the page size it was built for and smaller ones.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/davenport/target \
    if [ "$(uname -m)" = aarch64 ]; then export JEMALLOC_SYS_WITH_LG_PAGE=16; fi \
    && cargo build --profile shipping --locked --workspace --bins \
    && mkdir -p /out/bin /out/state \
    && cp target/shipping/davenport target/shipping/davenport-api-frontend target/shipping/davenport-replication /out/bin/

# The client library is loaded at run time for an fdb: store. It must match the cluster's version.
FROM docker.io/foundationdb/foundationdb:${FDB_VERSION} AS client-yes
USER root
RUN mkdir -p /client && cp /usr/lib/libfdb_c.so /client/

FROM docker.io/library/debian:bookworm-slim AS client-no
RUN mkdir -p /client

FROM client-${FDB_CLIENT} AS client

# Has glibc, public CA certificates and an unprivileged user, but no shell.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=client /client/ /usr/lib/
COPY --from=build /out/bin/ /usr/local/bin/
COPY --from=build --chown=65532:65532 /out/state/ /var/lib/davenport/
ENV DAVENPORT_STORE=lmdb:/var/lib/davenport/data \
    DAVENPORT_KEYS_FILE=/var/lib/davenport/davenport.keys \
    DAVENPORT_HTTP_LISTEN=0.0.0.0:5985 \
    DAVENPORT_LOG_FORMAT=json
VOLUME /var/lib/davenport
EXPOSE 5985
ENTRYPOINT ["davenport"]
CMD ["serve"]
