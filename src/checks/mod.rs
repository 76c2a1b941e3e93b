//! Checks of what surrounds a process: the manifests that run it.

pub(crate) mod kubernetes;
