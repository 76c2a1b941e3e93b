//! etcd.
/// etcd.
#[derive(Debug)]
pub struct EtcdStore;
