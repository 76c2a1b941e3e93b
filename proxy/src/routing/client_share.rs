//! The use that each client address makes of a worker: connections, and requests that wait or are in flight.
//!
//! The connections of an address share one [`AddressUse`] for as long as anything of it is left. Counting costs two
//! additions without a lock for each request, because a connection never leaves its worker.
//!
//! Not here: the response to a refused request ([`forward`](crate::forward)), and which connection gives way to a newcomer
//! ([`server`](crate::server)).
//!
//! # Invariants
//!
//! * A request counts until its pod is done with it, even if its client or its connection is gone.
//! * An address that comes back while requests of it are left finds them counted.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

/// The clients of one worker by their addresses.
#[derive(Debug)]
pub(crate) struct Addresses {
    usage: RefCell<HashMap<IpAddr, Rc<AddressUse>>>,
    /// Most requests of one address at a time.
    most: usize,
}

/// The use that one address makes.
#[derive(Debug)]
pub(crate) struct AddressUse {
    connections: Cell<usize>,
    requests: Cell<usize>,
    most: usize,
}

/// A connection of an address.
#[derive(Debug)]
pub(crate) struct AddressGuard(Rc<AddressUse>);

/// A request of an address that waits or is in flight.
#[derive(Debug)]
pub(crate) struct ShareGuard(Rc<AddressUse>);

impl Addresses {
    /// `most` bounds the requests that each address may have at a time; 0: no limit.
    pub(crate) fn new(most: usize) -> Self {
        Addresses { usage: RefCell::default(), most: if most == 0 { usize::MAX } else { most } }
    }

    /// Returns the use of an address, for a request that has come by a connection of another.
    pub(crate) fn usage(&self, ip: IpAddr) -> Rc<AddressUse> {
        let new = || Rc::new(AddressUse { connections: Cell::new(0), requests: Cell::new(0), most: self.most });
        self.usage.borrow_mut().entry(client(ip)).or_insert_with(new).clone()
    }

    /// Counts a connection of this address.
    pub(crate) fn connect(&self, ip: IpAddr) -> AddressGuard {
        let usage = self.usage(ip);
        usage.connections.set(usage.connections.get() + 1);
        AddressGuard(usage)
    }

    /// Forgets addresses without connections and requests.
    pub(crate) fn sweep(&self) {
        self.usage.borrow_mut().retain(|_, usage| usage.connections.get() > 0 || usage.requests.get() > 0);
    }
}

impl AddressGuard {
    pub(crate) fn usage(&self) -> &Rc<AddressUse> {
        &self.0
    }

    /// Returns the number of the address's connections.
    pub(crate) fn of_address(&self) -> usize {
        self.0.connections.get()
    }
}

impl Drop for AddressGuard {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get() - 1);
    }
}

impl AddressUse {
    /// Counts one more request, unless the address is at its limit.
    #[inline]
    pub(crate) fn claim(self: &Rc<Self>) -> Option<ShareGuard> {
        let requests = self.requests.get();
        if requests >= self.most {
            return None;
        }
        self.requests.set(requests + 1);
        Some(ShareGuard(self.clone()))
    }
}

impl Drop for ShareGuard {
    #[inline]
    fn drop(&mut self) {
        self.0.requests.set(self.0.requests.get() - 1);
    }
}

/// Returns the address that stands for a client: its IPv4 address, or its /64 of IPv6, the smallest block that a client
/// is assigned.
fn client(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) => IpAddr::V4(ip),
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn connections_of_one_address_share_its_requests() {
        let addresses = Addresses::new(2);
        let (one, two, other) = (
            addresses.connect(ip("192.0.2.1")),
            addresses.connect(ip("192.0.2.1")),
            addresses.connect(ip("192.0.2.2")),
        );
        let (first, _second) = (one.usage().claim(), two.usage().claim());
        assert!(first.is_some() && one.usage().claim().is_none() && two.usage().claim().is_none());
        assert!(other.usage().claim().is_some());
        drop(first);
        assert!(one.usage().claim().is_some());
        assert_eq!((one.of_address(), other.of_address()), (2, 1));
    }

    #[test]
    fn what_a_client_leaves_behind_counts_when_it_comes_back() {
        let addresses = Addresses::new(1);
        let connection = addresses.connect(ip("192.0.2.1"));
        let left_behind = connection.usage().claim();
        drop(connection);
        addresses.sweep();
        assert!(addresses.connect(ip("192.0.2.1")).usage().claim().is_none());
        drop(left_behind);
        addresses.sweep();
        assert!(addresses.usage.borrow().is_empty());
        assert!(addresses.connect(ip("192.0.2.1")).usage().claim().is_some());
    }

    #[test]
    fn one_network_of_ipv6_and_one_address_of_ipv4_are_one_client() {
        assert_eq!(client(ip("2001:db8::1")), client(ip("2001:db8::ffff:0:0:2")));
        assert_ne!(client(ip("2001:db8::1")), client(ip("2001:db8:0:1::1")));
        assert_eq!(client(ip("::ffff:192.0.2.1")), ip("192.0.2.1"));
        assert_ne!(client(ip("192.0.2.1")), client(ip("192.0.2.2")));
    }

    #[test]
    fn without_a_limit_everything_is_claimed() {
        let connection = Addresses::new(0).connect(ip("192.0.2.1"));
        let claims: Vec<_> = (0..10_000).map_while(|_| connection.usage().claim()).collect();
        assert_eq!(claims.len(), 10_000);
    }
}
