"""What the tests and comparisons in Python share: processes, ports, waiting, etcd, `segue` and its configurations. `tests/support` is
the same for those in Rust."""
