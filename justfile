# `just check` does what CI does, in the same order.
check:
    bash .ci/run

# Every test; `just test --quick` only what needs nothing but Rust.
test *options:
    ./tests/run {{ options }}

# Formats every crate.
fmt:
    cargo fmt --all
    cargo fmt --manifest-path tests/interop/Cargo.toml

# An agent, a server and two workloads in one terminal.
demo *options:
    cargo run --release -- demo {{ options }}
