//! An array that grows while others read it, without a lock and without moving what is there.
//!
//! Partitions may be added while requests flow, so the routing table cannot be a plain slice. Elements are never removed.

use crate::routing::sync::OnceLock;

/// Elements of one allocation.
const SEGMENT: usize = if cfg!(segue_loom) { 1 } else { 64 };
/// Most elements that there can be: the largest keyspace that the configuration accepts.
const CAPACITY: usize = if cfg!(segue_loom) { 2 } else { 65_536 };

/// Aligned so that two workers' counters never share a cache line.
#[repr(align(64))]
struct Segment<T>([T; SEGMENT]);

/// A growing array of default-made elements.
pub(crate) struct Segments<T> {
    segments: Box<[OnceLock<Box<Segment<T>>>]>,
}

impl<T: Default> Segments<T> {
    pub(crate) fn new() -> Self {
        Segments { segments: (0..CAPACITY / SEGMENT).map(|_| OnceLock::new()).collect() }
    }

    /// Makes the elements `0..len`.
    pub(crate) fn grow(&self, len: u32) {
        for segment in self.segments.iter().take((len as usize).div_ceil(SEGMENT)) {
            segment.get_or_init(|| Box::new(Segment(std::array::from_fn(|_| T::default()))));
        }
    }

    /// The element, if it was made.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        Some(&self.segments.get(index / SEGMENT)?.get()?.0[index % SEGMENT])
    }
}
