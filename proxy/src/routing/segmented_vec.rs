//! A vector that grows while other threads read it, without a lock and without moving its elements.
//!
//! Partitions may be added while requests are routed, so the routing table cannot be a plain slice. Elements are never
//! removed.

use crate::routing::sync::OnceLock;

/// Elements per allocation.
const SEGMENT_LEN: usize = if cfg!(segue_loom) { 1 } else { 64 };
/// Most elements: the largest keyspace that the configuration accepts.
const CAPACITY: usize = if cfg!(segue_loom) { 2 } else { 65_536 };

/// Aligned so that two workers' counters never share a cache line.
#[repr(align(64))]
struct Segment<T>([T; SEGMENT_LEN]);

/// A growing vector of default elements.
pub(crate) struct Segments<T> {
    segments: Box<[OnceLock<Box<Segment<T>>>]>,
}

impl<T: Default> Segments<T> {
    pub(crate) fn new() -> Self {
        Segments { segments: (0..CAPACITY / SEGMENT_LEN).map(|_| OnceLock::new()).collect() }
    }

    /// Makes the elements `0..len`.
    pub(crate) fn grow(&self, len: u32) {
        for segment in self.segments.iter().take((len as usize).div_ceil(SEGMENT_LEN)) {
            segment.get_or_init(|| Box::new(Segment(std::array::from_fn(|_| T::default()))));
        }
    }

    /// Returns the element, if it has been made.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        Some(&self.segments.get(index / SEGMENT_LEN)?.get()?.0[index % SEGMENT_LEN])
    }
}
