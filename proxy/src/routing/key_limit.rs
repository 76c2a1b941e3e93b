//! Bounds the requests of each key, a second and in flight, so that no key takes a partition from the others.
//!
//! A table of fixed size, which the workers share. A key has a place in one set of the table, chosen by a secret hash. The
//! place has the time until which the key has used its rate up (GCRA, the leaky bucket as a meter), and its requests in flight.
//! Not here: the key of a request ([`partition_key`](crate::routing::partition_key)), and the response to one too many
//! ([`forward`](crate::forward)).
//!
//! # Invariants
//!
//! * A key is refused for its own requests alone. Two keys share a place only if their hashes of 64 bits are the same.
//! * A key with requests in flight keeps its place.
//! * A full set forgets the key that has used least of its rate, or lets a newcomer pass uncounted. So more keys than there are
//!   places make the limits laxer, never stricter.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
// Not loom's: settings order nothing.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};

use http::HeaderName;
use http::request::Parts;
use tokio::time::Instant;

use crate::routing::partition_key::PartitionSource;
use crate::routing::sync::Mutex;

/// Sets of a table: 65,536 places, in 1.6 MiB.
const SETS: usize = 8 << 10;
const PLACES_PER_SET: usize = 8;

/// Limits of each key (`[router.limits.key]`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyLimits {
    /// The part of a request that has the limits.
    pub by: LimitedBy,
    /// Most requests in a second, on average; 0: no limit.
    pub requests_per_second: u32,
    /// Most requests at once after a pause; 0: as many as in a second.
    pub burst: u32,
    /// Most requests that wait or are in flight; 0: no limit.
    pub max_in_flight: u32,
}

/// The part of a request that has limits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LimitedBy {
    /// The key that it is routed or ordered by. A request without one is not limited.
    #[default]
    Key,
    /// The last line of this header: earlier ones may be the client's. Requests without it are limited together.
    Header(HeaderName),
}

/// The limits of a keyspace's keys in force, and the use that is made of them. Clones share both.
#[derive(Debug, Clone)]
pub struct KeyLimiter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    by: LimitedBy,
    terms: TermsInForce,
    hasher: RandomState,
    began: Instant,
    sets: Box<[Mutex<Set>]>,
}

/// A key has too many requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OverKeyLimit;

/// A request of a key that waits or is in flight.
#[derive(Debug)]
pub(crate) struct KeyShare {
    limiter: KeyLimiter,
    hash: u64,
}

impl KeyLimiter {
    /// Returns the limits, of which nothing is used.
    pub fn new(limits: &KeyLimits) -> Self {
        KeyLimiter(Arc::new(Inner {
            by: limits.by.clone(),
            terms: TermsInForce::new(limits),
            hasher: RandomState::new(),
            began: Instant::now(),
            sets: (0..SETS).map(|_| Mutex::new(Set::default())).collect(),
        }))
    }

    /// Changes the numbers. What is limited stays.
    pub fn set(&self, limits: &KeyLimits) {
        self.0.terms.set(limits);
    }

    /// Counts a request that has arrived at `now`. Returns its share of the limit in flight, if there is one. Not inlined: most
    /// sites have no limits of keys.
    #[inline(never)]
    pub(crate) fn claim(
        &self,
        head: &Parts,
        partition: &PartitionSource,
        now: Instant,
    ) -> Result<Option<KeyShare>, OverKeyLimit> {
        let key = match &self.0.by {
            LimitedBy::Key => partition.order_key(head).filter(|key| !key.is_empty()),
            LimitedBy::Header(name) => Some(Cow::Borrowed(last(head, name))),
        };
        let Some(key) = key else { return Ok(None) };
        self.claim_at(&key, nanos(now.saturating_duration_since(self.0.began).as_nanos()))
    }

    fn claim_at(&self, key: &[u8], now: u64) -> Result<Option<KeyShare>, OverKeyLimit> {
        let terms = self.0.terms.get();
        // Zero stands for no key.
        let hash = self.0.hasher.hash_one(key).max(1);
        let mut set = self.set_of(hash).lock().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = set.place(hash) else { return Ok(None) };
        place.claim(&terms, now)?;
        drop(set);
        Ok((terms.max_in_flight > 0).then(|| KeyShare { limiter: self.clone(), hash }))
    }

    fn set_of(&self, hash: u64) -> &Mutex<Set> {
        &self.0.sets[hash as usize % SETS]
    }
}

impl Drop for KeyShare {
    fn drop(&mut self) {
        let mut set = self.limiter.set_of(self.hash).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = set.0.iter_mut().find(|place| place.hash == self.hash) {
            place.in_flight = place.in_flight.saturating_sub(1);
        }
    }
}

/// Returns the value of the header's last line.
fn last<'head>(head: &'head Parts, name: &HeaderName) -> &'head [u8] {
    head.headers.get_all(name).iter().next_back().map_or(&b""[..], |value| value.as_bytes().trim_ascii())
}

fn nanos(nanos: u128) -> u64 {
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// The numbers, which may change at any time.
#[derive(Debug, Default)]
struct TermsInForce {
    interval: AtomicU64,
    tolerance: AtomicU64,
    max_in_flight: AtomicU32,
}

/// The numbers as a request finds them.
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// The part of a second that a request uses, in nanoseconds; 0: there is no limit.
    interval: u64,
    /// How far ahead of its time a key may be.
    tolerance: u64,
    max_in_flight: u32,
}

impl TermsInForce {
    fn new(limits: &KeyLimits) -> Self {
        let terms = TermsInForce::default();
        terms.set(limits);
        terms
    }

    fn set(&self, limits: &KeyLimits) {
        let burst = if limits.burst == 0 { limits.requests_per_second } else { limits.burst };
        let interval = 1_000_000_000_u64.checked_div(limits.requests_per_second.into()).unwrap_or(0);
        self.interval.store(interval, Relaxed);
        self.tolerance.store(interval.saturating_mul(u64::from(burst).saturating_sub(1)), Relaxed);
        self.max_in_flight.store(limits.max_in_flight, Relaxed);
    }

    fn get(&self) -> Terms {
        Terms {
            interval: self.interval.load(Relaxed),
            tolerance: self.tolerance.load(Relaxed),
            max_in_flight: self.max_in_flight.load(Relaxed),
        }
    }
}

#[derive(Debug, Default)]
struct Set([Place; PLACES_PER_SET]);

/// What is known of one key.
#[derive(Debug, Default, Clone, Copy)]
struct Place {
    /// Of the key; 0: the place is free.
    hash: u64,
    /// When the key will have used nothing of its rate, in nanoseconds on the table's clock.
    used_until: u64,
    in_flight: u32,
}

impl Set {
    /// Returns the place of a key, or one that it may have. `None` if all the others have requests in flight.
    fn place(&mut self, hash: u64) -> Option<&mut Place> {
        let known = self.0.iter().position(|place| place.hash == hash);
        let idlest = || {
            let idle = self.0.iter().enumerate().filter(|(_, place)| place.in_flight == 0);
            idle.min_by_key(|(_, place)| place.used_until).map(|(index, _)| index)
        };
        let place = &mut self.0[known.or_else(idlest)?];
        if known.is_none() {
            *place = Place { hash, ..Place::default() };
        }
        Some(place)
    }
}

impl Place {
    fn claim(&mut self, terms: &Terms, now: u64) -> Result<(), OverKeyLimit> {
        if terms.max_in_flight > 0 && self.in_flight >= terms.max_in_flight {
            return Err(OverKeyLimit);
        }
        if terms.interval > 0 {
            // Not further ahead than these limits allow: they may have been others before.
            let most = now.saturating_add(terms.tolerance);
            self.used_until = self.used_until.max(now).min(most.saturating_add(terms.interval));
            if self.used_until > most {
                return Err(OverKeyLimit);
            }
            self.used_until = self.used_until.saturating_add(terms.interval);
        }
        if terms.max_in_flight > 0 {
            self.in_flight += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn rate(requests_per_second: u32, burst: u32) -> KeyLimits {
        KeyLimits { requests_per_second, burst, ..KeyLimits::default() }
    }

    /// Returns how many of so many requests of a key pass at this time.
    fn passed(limiter: &KeyLimiter, key: &str, requests: usize, now: u64) -> usize {
        (0..requests).filter(|_| limiter.claim_at(key.as_bytes(), now).is_ok()).count()
    }

    #[test]
    fn a_key_has_its_burst_at_once_and_its_rate_from_then_on() {
        let limiter = KeyLimiter::new(&rate(10, 3));
        assert_eq!(passed(&limiter, "a", 10, SECOND), 3);
        let on_time = (1..=100).map(|tenth| passed(&limiter, "a", 2, SECOND + tenth * SECOND / 10)).collect::<Vec<_>>();
        assert_eq!(on_time, [1; 100], "one in each tenth of a second");
        assert_eq!(passed(&limiter, "a", 10, 13 * SECOND), 3, "a pause saves no more than a burst");
        assert_eq!(passed(&limiter, "b", 10, 13 * SECOND), 3, "another key has limits of its own");
    }

    #[test]
    fn without_a_burst_a_key_may_send_a_second_s_worth_at_once() {
        assert_eq!(passed(&KeyLimiter::new(&rate(100, 0)), "a", 1000, 0), 100);
        assert_eq!(passed(&KeyLimiter::new(&rate(1, 0)), "a", 1000, 0), 1);
        assert_eq!(passed(&KeyLimiter::new(&KeyLimits::default()), "a", 1000, 0), 1000, "no limit");
    }

    #[test]
    fn a_key_at_ten_times_its_rate_gets_its_rate_and_leaves_the_others_theirs() {
        let limiter = KeyLimiter::new(&rate(100, 10));
        let (mut hot, mut others) = (0, 0);
        for millisecond in 0..10_000 {
            let now = millisecond * SECOND / 1000;
            hot += passed(&limiter, "hot", 1, now);
            // A thousand keys, each once a second.
            others += passed(&limiter, &format!("key-{}", millisecond % 1000), 1, now);
        }
        assert!((1000..=1010).contains(&hot), "{hot}");
        assert_eq!(others, 10_000);
    }

    #[test]
    fn requests_that_come_late_are_counted_for_the_time_at_which_they_arrived() {
        let limiter = KeyLimiter::new(&rate(10, 1));
        let now = 100 * SECOND;
        let tenth = SECOND / 10;
        let all: Vec<_> = (0..10).map(|number| limiter.claim_at(b"a", now + number * tenth).is_ok()).collect();
        assert_eq!(all, [true; 10]);
    }

    #[test]
    fn requests_in_flight_make_room_when_they_end() {
        let limiter = KeyLimiter::new(&KeyLimits { max_in_flight: 2, ..KeyLimits::default() });
        let claim = |key: &str| limiter.claim_at(key.as_bytes(), 0);
        let (first, _second) = (claim("a").unwrap(), claim("a").unwrap());
        assert!(first.is_some());
        assert_eq!(claim("a").err(), Some(OverKeyLimit));
        assert!(claim("b").is_ok());
        drop(first);
        let _third = claim("a").unwrap();
        assert!(claim("a").is_err());
    }

    #[test]
    fn a_request_that_is_one_too_many_in_flight_uses_nothing_of_the_rate() {
        let limiter = KeyLimiter::new(&KeyLimits { max_in_flight: 1, ..rate(2, 2) });
        let first = limiter.claim_at(b"a", 0).unwrap();
        assert!((0..100).all(|_| limiter.claim_at(b"a", 0).is_err()));
        drop(first);
        assert!(limiter.claim_at(b"a", 0).is_ok());
    }

    #[test]
    fn limits_that_change_apply_to_the_next_request() {
        let limiter = KeyLimiter::new(&rate(1, 3600));
        assert_eq!(passed(&limiter, "a", 10_000, 0), 3600);
        // What an hour allowed does not keep the key out for an hour.
        limiter.set(&rate(10, 1));
        assert_eq!(passed(&limiter, "a", 10, 0), 0);
        assert_eq!(passed(&limiter, "a", 10, SECOND / 10), 1);
        limiter.set(&KeyLimits { max_in_flight: 1, ..KeyLimits::default() });
        let held = limiter.claim_at(b"a", 0).unwrap();
        assert!(limiter.claim_at(b"a", 0).is_err());
        limiter.set(&KeyLimits::default());
        assert!(limiter.claim_at(b"a", 0).unwrap().is_none());
        drop(held);
        limiter.set(&KeyLimits { max_in_flight: 1, ..KeyLimits::default() });
        assert!(limiter.claim_at(b"a", 0).is_ok(), "the count is right again");
    }

    #[test]
    fn a_million_keys_take_no_more_memory_and_leave_the_hot_one_its_place() {
        let limiter = KeyLimiter::new(&rate(10, 10));
        assert!(size_of::<Mutex<Set>>() * SETS < 2 << 20);
        assert_eq!(passed(&limiter, "hot", 100, 0), 10);
        for key in 0..1_000_000 {
            assert_eq!(passed(&limiter, &key.to_string(), 1, 0), 1, "no key is refused for the others");
        }
        assert_eq!(passed(&limiter, "hot", 100, 0), 0);
        assert_eq!(limiter.0.sets.len(), SETS);
    }

    #[test]
    fn keys_in_flight_keep_their_places_and_those_without_one_pass() {
        let limiter = KeyLimiter::new(&KeyLimits { max_in_flight: 1, ..KeyLimits::default() });
        let keys = SETS * PLACES_PER_SET * 2;
        let in_flight: Vec<_> = (0..keys).map(|key| limiter.claim_at(key.to_string().as_bytes(), 0).unwrap()).collect();
        let counted = in_flight.iter().filter(|share| share.is_some()).count();
        assert!(counted > SETS * PLACES_PER_SET * 9 / 10 && counted <= SETS * PLACES_PER_SET, "{counted}");
        for (key, share) in in_flight.iter().enumerate() {
            let again = limiter.claim_at(key.to_string().as_bytes(), 0);
            assert_eq!(again.is_err(), share.is_some(), "{key}");
        }
        drop(in_flight);
        let is_free = |set: &Mutex<Set>| set.lock().unwrap().0.iter().all(|place| place.in_flight == 0);
        assert!(limiter.0.sets.iter().all(is_free));
    }

    #[test]
    fn workers_count_together() {
        let limiter = KeyLimiter::new(&KeyLimits { max_in_flight: 1000, ..rate(1_000_000, 100) });
        let passed: usize = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|_| {
                    let limiter = limiter.clone();
                    scope.spawn(move || (0..1000).filter(|_| limiter.claim_at(b"a", 0).is_ok()).count())
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        assert_eq!(passed, 100);
        assert!(limiter.claim_at(b"a", SECOND).is_ok());
    }

    #[test]
    fn the_last_line_of_a_header_counts_and_none_is_a_value_as_well() {
        let by = LimitedBy::Header(HeaderName::from_static("x-tenant"));
        let limiter = KeyLimiter::new(&KeyLimits { by, ..rate(1, 1) });
        let claim = |lines: &[&str]| {
            let request = lines.iter().fold(http::Request::get("/"), |request, line| request.header("x-tenant", *line));
            let number = PartitionSource::Number { header: PartitionSource::DEFAULT_HEADER, order_by: None };
            limiter.claim(&request.body(()).unwrap().into_parts().0, &number, limiter.0.began).is_ok()
        };
        assert!(claim(&["a"]) && !claim(&["a"]) && !claim(&["b", "a"]) && !claim(&["c", " a "]));
        assert!(claim(&["a", "b"]));
        assert!(claim(&[]) && !claim(&[]) && !claim(&[""]));
    }

    #[test]
    fn a_request_without_a_key_is_not_limited() {
        let order_by = Some(HeaderName::from_static("x-key"));
        let source = PartitionSource::Number { header: PartitionSource::DEFAULT_HEADER, order_by };
        let limiter = KeyLimiter::new(&rate(1, 1));
        let claim = |key: Option<&str>| {
            let request = key.into_iter().fold(http::Request::get("/"), |request, key| request.header("x-key", key));
            limiter.claim(&request.body(()).unwrap().into_parts().0, &source, limiter.0.began).is_ok()
        };
        assert!(claim(Some("a")) && !claim(Some("a")));
        assert!(claim(None) && claim(None) && claim(Some("")) && claim(Some("")));
    }
}
