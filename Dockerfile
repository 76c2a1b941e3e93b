# Two stages: a toolchain that builds, and a small image with the binary alone.
FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends protobuf-compiler && rm -rf /var/lib/apt/lists/*
WORKDIR /segue
COPY . .
RUN cargo build --release --locked --bin segue && strip target/release/segue

FROM debian:bookworm-slim
COPY --from=build /segue/target/release/segue /usr/local/bin/segue
USER 65532:65532
ENTRYPOINT ["segue"]
CMD ["--help"]
