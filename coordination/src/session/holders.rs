//! The participants that share a lease: what each may presume about it, and whose keys have to be deleted while the
//! lease goes on for the others.
//!
//! No I/O and no clock: [`lease`](super::lease) passes the moments, in microseconds since the lease was requested, and
//! carries the deletions out.
//!
//! # Invariants
//!
//! * A renewal counts only for the participants whose loop had made progress when it was sent. The share of a stuck
//!   participant therefore ends when a lease of its own would have ended. After an outage longer than the TTL, every
//!   share lasts for a TTL more: the store has kept the lease, and the loops do not return together.
//! * The key of a participant that has ended without deleting it is deleted, and not before that participant's share is
//!   over.
//! * Nobody joins a lease that is over or is being revoked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use segue_protocol::ids::Incarnation;
use segue_protocol::lease::{LeaseTimes, has_made_progress};
use tokio::sync::watch;
use tokio::time::Instant;

#[cfg(doc)]
use super::clock::lease_now;

/// The known state of a lease. Its moments are on the clock of [`lease_now`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseState {
    /// New work may begin before this moment.
    pub trusted_until: Instant,
    /// The lease is valid at least until this moment.
    pub stands_until: Instant,
    /// The lease is gone: the store has said so, or the holder was stuck for so long that its key is deleted. An
    /// unreachable store leaves this `false` for ever; the times above then limit what may be presumed.
    pub lost: bool,
}

/// A participant among the holders of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HolderId(u64);

/// The keys that a participant puts under the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnKeys {
    /// The registration.
    pub(super) key: String,
    /// Keys that end with the registration.
    pub(super) also: Vec<String>,
}

/// Whether a participant's key exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Registered {
    No,
    /// The key was sent to the store, which has not responded.
    Perhaps,
    Since(Incarnation),
}

/// The key of a participant whose share is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LeftOver {
    pub(super) id: HolderId,
    pub(super) keys: OwnKeys,
    pub(super) registered: Registered,
}

/// The share of a participant that has joined.
pub(super) struct Joined {
    pub(super) id: HolderId,
    pub(super) state: watch::Receiver<LeaseState>,
    pub(super) progress: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Holder {
    keys: OwnKeys,
    registered: Registered,
    /// The participant has neither left nor been dropped.
    stays: bool,
    /// When its share is over.
    ends_at: u64,
    progress: Arc<AtomicU64>,
    state: watch::Sender<LeaseState>,
}

impl Holder {
    /// Returns whether the lease has to be renewed for this participant.
    fn is_live(&self) -> bool {
        self.stays && !self.state.borrow().lost
    }
}

/// The holders of one lease.
#[derive(Debug)]
pub(super) struct Holders {
    base: Instant,
    ttl: u64,
    /// When the last confirmed request was sent.
    confirmed: u64,
    is_over: bool,
    next: u64,
    all: BTreeMap<HolderId, Holder>,
}

impl Holders {
    /// Begins with nobody, for a lease of `ttl` that was requested at `base`.
    pub(super) fn new(base: Instant, ttl: Duration) -> Self {
        Holders { base, ttl: ttl.as_micros() as u64, confirmed: 0, is_over: false, next: 0, all: BTreeMap::new() }
    }

    /// Adds a participant, unless the lease is over.
    pub(super) fn join(&mut self, now: u64, keys: OwnKeys) -> Option<Joined> {
        if self.is_over {
            return None;
        }
        // The newcomer deletes what an attempt has left at its key, and registers only when the key is absent.
        let attempts = self.all.len();
        self.all.retain(|_, it| it.stays || it.keys.key != keys.key || it.registered != Registered::Perhaps);
        let registered = if self.all.len() < attempts { Registered::Perhaps } else { Registered::No };
        let id = HolderId(self.next);
        self.next += 1;
        let known = self.state_of(self.confirmed);
        let (sender, state) = watch::channel(known);
        let progress = Arc::new(AtomicU64::new(now));
        let ends_at = self.confirmed.saturating_add(self.ttl);
        let holder = Holder { keys, registered, stays: true, ends_at, progress: progress.clone(), state: sender };
        self.all.insert(id, holder);
        Some(Joined { id, state, progress })
    }

    /// Records whether the participant's key exists.
    pub(super) fn set_registered(&mut self, id: HolderId, registered: Registered) {
        if let Some(holder) = self.all.get_mut(&id) {
            holder.registered = registered;
            if !holder.stays && registered == Registered::No {
                self.all.remove(&id);
            }
        }
    }

    /// Returns whether a participant has registered this key or is about to. One that was dropped counts for as long as
    /// its key exists: it may not have fenced.
    pub(super) fn has(&self, key: &str) -> bool {
        let has = |it: &Holder| it.stays || matches!(it.registered, Registered::Since(_));
        self.all.values().any(|it| it.keys.key == key && has(it))
    }

    /// Ends the share of a participant that has fenced. Returns `true` if nobody needs the lease any more: it must be
    /// revoked.
    pub(super) fn leave(&mut self, id: HolderId, now: u64) -> bool {
        if let Some(holder) = self.all.get_mut(&id) {
            holder.ends_at = 0;
        }
        self.drop_out(id);
        let is_needed = |it: &Holder| it.is_live() || (!it.stays && now < it.ends_at);
        self.is_over |= !self.all.values().any(is_needed);
        self.is_over
    }

    /// Ends the renewals for a participant that is gone, perhaps without having fenced.
    pub(super) fn drop_out(&mut self, id: HolderId) {
        if let Some(holder) = self.all.get_mut(&id) {
            holder.stays = false;
            if holder.registered == Registered::No {
                self.all.remove(&id);
            }
        }
    }

    /// Returns the participants for which the lease is to be renewed at this moment, and the keys of those that are
    /// stuck.
    pub(super) fn to_renew(&self, now: u64) -> (Vec<HolderId>, Vec<String>) {
        let live = self.all.iter().filter(|(_, it)| it.is_live());
        let (renewed, stuck): (Vec<_>, Vec<_>) =
            live.partition(|(_, it)| has_made_progress(now, it.progress.load(Relaxed), self.ttl));
        let keys = stuck.into_iter().map(|(_, it)| it.keys.key.clone());
        (renewed.into_iter().map(|(id, _)| *id).collect(), keys.collect())
    }

    /// Records that a renewal for these participants was sent at this moment, and confirmed.
    pub(super) fn confirm(&mut self, sent: u64, renewed: &[HolderId]) {
        let share = sent.saturating_add(self.ttl);
        if self.is_unconfirmed(sent) {
            // The store was away, and has kept the lease. All loops were held up; each returns in its own time.
            for holder in self.all.values_mut().filter(|it| it.is_live()) {
                holder.ends_at = holder.ends_at.max(share);
            }
        }
        self.confirmed = sent;
        let state = self.state_of(sent);
        for id in renewed {
            if let Some(holder) = self.all.get_mut(id).filter(|it| it.is_live()) {
                holder.ends_at = share;
                holder.state.send_replace(state);
            }
        }
    }

    /// Records that the store has ended the lease.
    pub(super) fn end(&mut self) {
        self.is_over = true;
        for holder in self.all.values() {
            holder.state.send_modify(|state| state.lost = true);
        }
    }

    /// Returns the keys that have to be deleted, as the lease goes on for others: those of the participants whose share is
    /// over and that are not among the `renewed`. A participant that is stuck is told that its lease is lost. Nobody is,
    /// and no key is returned, until a renewal shows that the lease does go on.
    pub(super) fn left_over(&mut self, now: u64, renewed: &[HolderId]) -> Vec<LeftOver> {
        if self.is_unconfirmed(now) {
            return Vec::new();
        }
        let is_over = |it: &Holder| it.ends_at <= now && it.registered != Registered::No;
        let over = self.all.iter().filter(|(id, it)| is_over(it) && !renewed.contains(id));
        let over = over.map(|(id, holder)| {
            holder.state.send_if_modified(|state| !std::mem::replace(&mut state.lost, true));
            LeftOver { id: *id, keys: holder.keys.clone(), registered: holder.registered }
        });
        over.collect()
    }

    /// Returns whether a key still has to be deleted.
    pub(super) fn is_left_over(&self, left: &LeftOver) -> bool {
        self.all.get(&left.id).is_some_and(|it| it.registered == left.registered)
    }

    /// Returns whether the lease may have ended, by what the store has confirmed.
    fn is_unconfirmed(&self, now: u64) -> bool {
        self.confirmed.saturating_add(self.ttl) <= now
    }

    /// Records that a key was deleted, unless it was put meanwhile: what the deletion saw is then out of date.
    pub(super) fn set_deleted(&mut self, left: &LeftOver) {
        if self.is_left_over(left) {
            self.set_registered(left.id, Registered::No);
        }
    }

    fn state_of(&self, sent: u64) -> LeaseState {
        let times = LeaseTimes::confirmed(sent, self.ttl);
        LeaseState {
            trusted_until: self.base + Duration::from_micros(times.trusted_until),
            stands_until: self.base + Duration::from_micros(times.stands_until),
            lost: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: u64 = 12;

    fn holders() -> Holders {
        Holders::new(Instant::now(), Duration::from_micros(TTL))
    }

    fn keys(key: &str) -> OwnKeys {
        OwnKeys { key: key.to_owned(), also: Vec::new() }
    }

    fn registered(holders: &mut Holders, key: &str, now: u64) -> Joined {
        let joined = holders.join(now, keys(key)).unwrap();
        holders.set_registered(joined.id, Registered::Since(Incarnation::registered_at(7.into())));
        joined
    }

    fn names(left: &[LeftOver]) -> Vec<&str> {
        left.iter().map(|left| left.keys.key.as_str()).collect()
    }

    #[test]
    fn a_renewal_counts_only_for_those_that_make_progress() {
        let mut holders = holders();
        let (a, b) = (registered(&mut holders, "a", 0), registered(&mut holders, "b", 0));
        a.progress.store(7, Relaxed);
        assert_eq!(holders.to_renew(7), (vec![a.id], vec!["b".to_owned()]));
        let before = *b.state.borrow();
        holders.confirm(7, &[a.id]);
        assert!(a.state.borrow().trusted_until > before.trusted_until);
        assert_eq!(*b.state.borrow(), before);
        assert_eq!(names(&holders.left_over(TTL - 1, &[])), [""; 0], "a lease of its own would still stand");
        assert_eq!(names(&holders.left_over(TTL, &[a.id])), ["b"]);
        assert!(b.state.borrow().lost && !a.state.borrow().lost);
        b.progress.store(TTL, Relaxed);
        assert_eq!(holders.to_renew(TTL).0, [a.id], "what is lost is not renewed");
    }

    #[test]
    fn one_whose_renewals_the_store_does_not_confirm_is_not_stuck() {
        let mut holders = holders();
        let a = registered(&mut holders, "a", 0);
        a.progress.store(2 * TTL, Relaxed);
        let (renewed, _) = holders.to_renew(2 * TTL);
        assert!(holders.left_over(2 * TTL, &renewed).is_empty());
        assert!(!a.state.borrow().lost);
    }

    #[test]
    fn after_an_outage_longer_than_the_ttl_each_has_a_ttl_to_make_progress_again() {
        let mut holders = holders();
        let (a, b) = (registered(&mut holders, "a", 0), registered(&mut holders, "b", 0));
        let back = 2 * TTL;
        a.progress.store(back, Relaxed);
        let (renewed, _) = holders.to_renew(back);
        assert_eq!(renewed, [a.id]);
        assert!(holders.left_over(back, &renewed).is_empty(), "nothing was confirmed since the outage");
        holders.confirm(back, &renewed);
        a.progress.store(back + TTL - 1, Relaxed);
        holders.confirm(back + TTL - 1, &[a.id]);
        assert!(holders.left_over(back + TTL - 1, &[a.id]).is_empty() && !b.state.borrow().lost);
        assert_eq!(names(&holders.left_over(back + TTL, &[a.id])), ["b"], "it is stuck");
    }

    #[test]
    fn the_last_one_that_leaves_ends_the_lease_and_nobody_joins_it() {
        let mut holders = holders();
        let (a, b) = (registered(&mut holders, "a", 0), registered(&mut holders, "b", 0));
        holders.set_registered(a.id, Registered::No);
        assert!(!holders.leave(a.id, 1));
        assert!(holders.join(1, keys("c")).is_some_and(|c| !holders.leave(c.id, 1)));
        assert!(holders.leave(b.id, 2));
        assert!(holders.join(2, keys("a")).is_none());
    }

    #[test]
    fn a_lease_is_not_revoked_before_the_share_of_one_that_has_not_fenced_is_over() {
        let mut holders = holders();
        let (a, b) = (registered(&mut holders, "a", 0), registered(&mut holders, "b", 0));
        holders.drop_out(a.id);
        assert!(holders.left_over(TTL - 1, &[]).is_empty());
        assert!(!holders.leave(b.id, TTL - 1));
        let c = registered(&mut holders, "c", TTL);
        assert!(holders.leave(c.id, TTL));
    }

    #[test]
    fn only_what_an_attempt_has_left_is_forgotten() {
        let mut holders = holders();
        let (a, _b) = (registered(&mut holders, "a", 0), registered(&mut holders, "b", 0));
        holders.drop_out(a.id);
        assert!(holders.has("a"), "a life that has not fenced is left to the end of its share");
        holders.set_registered(a.id, Registered::No);
        assert!(!holders.has("a"));
    }

    #[test]
    fn a_key_that_a_leaver_could_not_delete_is_deleted_at_once() {
        let mut holders = holders();
        let (a, _b) = (registered(&mut holders, "a", 0), registered(&mut holders, "b", 0));
        holders.leave(a.id, 1);
        let left = holders.left_over(1, &[]);
        assert_eq!(names(&left), ["a"]);
        assert!(holders.is_left_over(&left[0]));
        holders.set_registered(a.id, Registered::No);
        assert!(!holders.is_left_over(&left[0]) && holders.left_over(1, &[]).is_empty());
    }

    #[test]
    fn a_key_that_is_put_while_it_is_looked_for_is_still_deleted() {
        let mut holders = holders();
        let slow = holders.join(0, keys("a")).unwrap();
        holders.set_registered(slow.id, Registered::Perhaps);
        holders.confirm(1, &[]);
        let left = holders.left_over(TTL, &[]);
        let put = Registered::Since(Incarnation::registered_at(8.into()));
        holders.set_registered(slow.id, put);
        holders.set_deleted(&left[0]);
        let left = holders.left_over(TTL, &[]);
        assert_eq!(left.iter().map(|left| left.registered).collect::<Vec<_>>(), [put]);
        holders.set_deleted(&left[0]);
        assert!(holders.left_over(TTL, &[]).is_empty());
    }

    #[test]
    fn the_next_attempt_looks_after_what_an_attempt_has_left() {
        let mut holders = holders();
        let _other = registered(&mut holders, "b", 0);
        let attempt = holders.join(0, keys("a")).unwrap();
        holders.set_registered(attempt.id, Registered::Perhaps);
        holders.drop_out(attempt.id);
        holders.confirm(1, &[]);
        let left = holders.left_over(TTL, &[]);
        assert_eq!(names(&left), ["b", "a"]);
        assert!(!holders.has("a"));
        let next = holders.join(TTL, keys("a")).unwrap();
        assert!(holders.has("a") && !holders.is_left_over(&left[1]));
        holders.drop_out(next.id);
        holders.confirm(TTL, &[]);
        assert_eq!(
            names(&holders.left_over(TTL + 1, &[])),
            ["b", "a"],
            "the next one was stopped before it had looked"
        );
    }
}
