//! The embedded store.
/// The embedded store.
#[derive(Debug)]
pub struct MemoryStore;
