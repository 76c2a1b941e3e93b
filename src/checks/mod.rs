//! Checks of what others provide: the pods, and the manifests that run Segue.

pub(crate) mod conformance;
pub(crate) mod kubernetes;
