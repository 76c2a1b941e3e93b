//! A list that several parts of the process read and one changes.

use std::sync::{Arc, PoisonError, RwLock};

/// A list. Clones are the same one.
#[derive(Debug)]
pub(crate) struct SharedList<T>(Arc<RwLock<Vec<T>>>);

impl<T> Clone for SharedList<T> {
    fn clone(&self) -> Self {
        SharedList(self.0.clone())
    }
}

impl<T> Default for SharedList<T> {
    fn default() -> Self {
        SharedList(Arc::default())
    }
}

impl<T> FromIterator<T> for SharedList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        SharedList(Arc::new(RwLock::new(values.into_iter().collect())))
    }
}

impl<T: Clone> SharedList<T> {
    /// Returns the values as they are now.
    pub(crate) fn all(&self) -> Vec<T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds a value at the end.
    pub(crate) fn push(&self, value: T) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(value);
    }

    /// Takes out the values for which this does not hold.
    pub(crate) fn retain(&self, holds: impl FnMut(&T) -> bool) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(holds);
    }
}
