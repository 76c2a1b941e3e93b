# The image of Segue: the binary and the C library that it loads. It contains no shell and no packages.
#
#   docker build -t segue .
#   docker run -v "$PWD/router.toml:/etc/segue/router.toml:ro" -p 8080:8080 segue run --config /etc/segue/router.toml

# cargo-chef reduces the workspace to its manifests, so that the dependencies are built in a layer of their own and built
# again only when they change.
FROM rust:1.95-bookworm AS chef
RUN apt-get update \
 && apt-get install -y --no-install-recommends libprotobuf-dev protobuf-compiler python3 \
 && rm -rf /var/lib/apt/lists/*
# cargo-chef only starts compilers, so an optimised build of it would be wasted.
RUN cargo install --locked --debug cargo-chef@0.1.78
WORKDIR /segue

FROM chef AS recipe
COPY . .
RUN cargo chef prepare

FROM chef AS build
COPY --from=recipe /segue/recipe.json .
COPY deploy/pgo deploy/pgo
COPY scripts/release scripts/
RUN scripts/release cargo chef cook
COPY . .
# For segue_build_info: docker build --build-arg REVISION=$(git rev-parse HEAD) .
ARG REVISION=unknown
ENV SEGUE_REVISION=$REVISION
# Another value compiles the crates of the workspace once more. The test of the image compares the layers of both builds.
ARG BUILD=1
RUN scripts/release
# The time of all files and of the bill of materials: docker build --build-arg SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) .
ARG SOURCE_DATE_EPOCH=0
# The image's file system: the binary, the libraries that it loads, its user, the licences, and the bill of materials. Function
# names are kept for backtraces.
RUN mkdir -p /image/usr/local/bin /image/etc /image/usr/share/doc/segue \
 && cp target/release/segue /image/usr/local/bin/ \
 && strip --strip-debug /image/usr/local/bin/segue \
 && ldd target/release/segue | grep -o '/[^ ]*' | xargs cp --parents --dereference --target-directory /image \
 && cp --parents /usr/share/doc/libc6/copyright /usr/share/doc/libgcc-s1/copyright /image \
 && cp LICENSE /image/usr/share/doc/segue/copyright \
 && SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH scripts/sbom > /image/usr/share/doc/segue/segue.cdx.json \
 && echo 'hosts: files dns' > /image/etc/nsswitch.conf \
 && echo 'segue:x:65532:65532::/:/usr/local/bin/segue' > /image/etc/passwd \
 && echo 'segue:x:65532:' > /image/etc/group \
 && find /image -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +

FROM scratch
LABEL org.opencontainers.image.title="segue" \
      org.opencontainers.image.description="A router-side L7 proxy that moves partitions between writer pods while clients keep sending, and loses nothing" \
      org.opencontainers.image.source="https://github.com/segue-proxy/segue" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /image /
ENV PATH=/usr/local/bin
USER 65532:65532
# The default ports: 8080 for requests, 9090 for health, metrics and status.
EXPOSE 7070 8080 9090
STOPSIGNAL SIGTERM
ENTRYPOINT ["segue"]
CMD ["--help"]
