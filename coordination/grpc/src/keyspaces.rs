//! The keyspaces of one listener, and which of them a call is about.
//!
//! A first heartbeat and a `Poll` name theirs in `hello`. `Ack` and `Leave` carry the token of a registration, which
//! belongs to one keyspace.

use std::sync::{Arc, PoisonError, RwLock};

use tonic::Status;

/// The number of keyspaces that a connection has room for, if keyspaces may be added while it is served.
pub(crate) const GROWING_ROOM: usize = 64;

/// A keyspace that a listener serves.
pub(crate) trait NamedKeyspace {
    fn name(&self) -> &str;
}

/// The keyspaces of a listener, which may change while it serves. Clones are the same list.
#[derive(Debug)]
pub(crate) struct SharedKeyspaces<T>(Arc<RwLock<Vec<T>>>);

impl<T> Clone for SharedKeyspaces<T> {
    fn clone(&self) -> Self {
        SharedKeyspaces(self.0.clone())
    }
}

impl<T: NamedKeyspace + Clone> SharedKeyspaces<T> {
    pub(crate) fn new(keyspaces: Vec<T>) -> Self {
        SharedKeyspaces(Arc::new(RwLock::new(keyspaces)))
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn add(&self, keyspace: T) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(keyspace);
    }

    /// Takes a keyspace out, if it is there.
    pub(crate) fn remove(&self, name: &str) -> Option<T> {
        let mut served = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let index = served.iter().position(|keyspace| keyspace.name() == name)?;
        Some(served.remove(index))
    }

    /// Returns the keyspace that a call is about, as [`choose`] finds it.
    pub(crate) fn choose(&self, wanted: &str) -> Result<T, Status> {
        choose(&self.0.read().unwrap_or_else(PoisonError::into_inner), wanted).cloned()
    }
}

/// Returns the keyspace with this name. An empty name stands for the only keyspace.
fn choose<'a, T: NamedKeyspace>(served: &'a [T], wanted: &str) -> Result<&'a T, Status> {
    if let [only] = served
        && wanted.is_empty()
    {
        return Ok(only);
    }
    if let Some(found) = served.iter().find(|keyspace| keyspace.name() == wanted) {
        return Ok(found);
    }
    let names: Vec<_> = served.iter().map(|keyspace| format!("{:?}", keyspace.name())).collect();
    let names = names.join(", ");
    Err(match (served.len(), wanted) {
        (0, _) => Status::failed_precondition(format!("this server has no keyspace yet, the pod is of {wanted:?}")),
        (1, _) => Status::failed_precondition(format!("this server is of keyspace {names}, the pod of {wanted:?}")),
        (_, "") => Status::invalid_argument(format!("the call names no keyspace; expected one of {names}")),
        _ => Status::failed_precondition(format!("this server is of keyspaces {names}, the pod of {wanted:?}")),
    })
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    impl NamedKeyspace for &'static str {
        fn name(&self) -> &str {
            self
        }
    }

    #[test]
    fn a_call_without_a_name_means_the_only_keyspace_and_an_unknown_name_is_told_the_known_ones() {
        assert_eq!(choose(&["a"], "").unwrap(), &"a");
        assert_eq!(choose(&["a", "b"], "b").unwrap(), &"b");
        let refused = |served: &[&'static str], wanted| {
            let status = choose(served, wanted).unwrap_err();
            (status.code(), status.message().to_owned())
        };
        let other = r#"this server is of keyspace "a", the pod of "c""#.to_owned();
        assert_eq!(refused(&["a"], "c"), (Code::FailedPrecondition, other));
        let none = r#"the call names no keyspace; expected one of "a", "b""#.to_owned();
        assert_eq!(refused(&["a", "b"], ""), (Code::InvalidArgument, none));
        let neither = r#"this server is of keyspaces "a", "b", the pod of "c""#.to_owned();
        assert_eq!(refused(&["a", "b"], "c"), (Code::FailedPrecondition, neither));
    }
}
