# The image of Segue: the binary, the C library that it loads, and nothing else (no shell, no packages).
#
#   docker build -t segue .
#   docker run -v "$PWD/router.toml:/etc/segue/router.toml:ro" -p 8080:8080 segue run --config /etc/segue/router.toml

# What a build of the dependencies depends on: every manifest and the lock, and each target with nothing in it. A change
# of the code leaves this stage's result as it was, and so the next one's dependencies are built only when they change.
FROM debian:bookworm-slim AS manifests
WORKDIR /segue
COPY . .
RUN find . -type f ! -name Cargo.toml ! -name Cargo.lock ! -path './.cargo/*' \
      ! -regex '.*/\(build\|lib\|main\)\.rs' ! -regex '\./\([^/]*/\)?\(benches\|examples\|tests\)/[^/]*\.rs' -delete \
 && find . -name '*.rs' -exec sh -c 'for file; do echo "fn main() { }" > "$file"; done' stubs {} + \
 && find . -type d -empty -delete

FROM rust:1.95-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends libprotobuf-dev protobuf-compiler \
 && rm -rf /var/lib/apt/lists/*
# Names of functions stay, for backtraces; what debuggers need goes.
ENV CARGO_PROFILE_RELEASE_DEBUG=none CARGO_PROFILE_RELEASE_STRIP=debuginfo
WORKDIR /segue
COPY --from=manifests /segue .
RUN cargo build --release --locked --bin segue
COPY . .
# Cargo goes by times, and the files may be older than what was built in their stead.
RUN find . -name '*.rs' -exec touch {} + \
 && cargo build --release --locked --bin segue
# The image's file system: the binary, the libraries that it names, whom it runs as, and whose work that is.
RUN mkdir -p /image/usr/local/bin /image/etc /image/usr/share/doc/segue \
 && cp target/release/segue /image/usr/local/bin/ \
 && ldd target/release/segue | grep -o '/[^ ]*' | xargs cp --parents --dereference --target-directory /image \
 && cp --parents /usr/share/doc/libc6/copyright /usr/share/doc/libgcc-s1/copyright /image \
 && cp LICENSE /image/usr/share/doc/segue/copyright \
 && echo 'hosts: files dns' > /image/etc/nsswitch.conf \
 && echo 'segue:x:65532:65532::/:/usr/local/bin/segue' > /image/etc/passwd \
 && echo 'segue:x:65532:' > /image/etc/group

FROM scratch
LABEL org.opencontainers.image.title="segue" \
      org.opencontainers.image.description="A router-side L7 proxy that moves partitions between writer pods while clients keep sending, and loses nothing" \
      org.opencontainers.image.source="https://github.com/segue-proxy/segue" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /image /
ENV PATH=/usr/local/bin
USER 65532:65532
# By default: requests; health, metrics and status.
EXPOSE 8080 9090
STOPSIGNAL SIGTERM
ENTRYPOINT ["segue"]
CMD ["--help"]
