//! The participants that share a lease: what each may presume about it, and whose keys have to be deleted while the
//! lease goes on for the others.
//!
//! Moments are in microseconds since the lease was requested.
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

use crate::ids::Incarnation;
use crate::lease::{LeaseTimes, has_made_progress};
use crate::registration::OwnKeys;

/// A participant's share: how long it may trust the lease, and whether the lease is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HolderShare {
    /// How long the lease may be trusted.
    pub times: LeaseTimes,
    /// The lease is gone: the store has said so, the store went back, or the participant was stuck for so long that its key
    /// is deleted. An unreachable store leaves this `false` for ever; the times then limit what may be presumed.
    pub lost: bool,
}

/// A participant among the holders of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(u64);

/// Whether a participant's key exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyState {
    /// It does not.
    No,
    /// The key was sent to the store, which has not responded.
    Perhaps,
    /// It does, and this life began with it.
    Since(Incarnation),
}

/// The key of a participant whose share is over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeftOver {
    /// The participant.
    pub id: HolderId,
    /// Its keys.
    pub keys: OwnKeys,
    /// Whether its key exists, as far as that is known.
    pub registered: KeyState,
}

/// The work of one turn of the task that renews the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenewalTurn {
    /// The participants for which the lease is to be renewed. If there is none it is not renewed: it ends, and all keys
    /// with it.
    pub renewed: Vec<HolderId>,
    /// The keys of the participants whose loop does not turn.
    pub stuck: Vec<String>,
    /// The keys to delete.
    pub left: Vec<LeftOver>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Holder {
    keys: OwnKeys,
    registered: KeyState,
    /// The participant has neither left nor been dropped.
    stays: bool,
    /// When its share is over.
    ends_at: u64,
    /// When its loop has last made progress.
    progress: u64,
    /// When its loop has last turned, if only to wait for the store.
    turned: u64,
    share: HolderShare,
}

impl Holder {
    /// Returns whether the lease has to be renewed for this participant.
    fn is_live(&self) -> bool {
        self.stays && !self.share.lost
    }
}

/// The holders of one lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holders {
    ttl: u64,
    /// When the last request was sent.
    asked: u64,
    /// When the last confirmed request was sent.
    confirmed: u64,
    is_over: bool,
    next: u64,
    all: BTreeMap<HolderId, Holder>,
}

impl Holders {
    /// Begins with nobody, for a lease of `ttl`.
    pub fn new(ttl: u64) -> Self {
        Holders { ttl, asked: 0, confirmed: 0, is_over: false, next: 0, all: BTreeMap::new() }
    }

    /// Adds a participant, unless the lease is over.
    pub fn join(&mut self, now: u64, keys: OwnKeys) -> Option<HolderId> {
        if self.is_over {
            return None;
        }
        // The newcomer deletes what an attempt has left at its key, and registers only when the key is absent.
        let attempts = self.all.len();
        self.all.retain(|_, it| it.stays || it.keys.key != keys.key || it.registered != KeyState::Perhaps);
        let registered = if self.all.len() < attempts { KeyState::Perhaps } else { KeyState::No };
        let id = HolderId(self.next);
        self.next += 1;
        let share = self.confirmed_at(self.confirmed);
        let ends_at = share.times.stands_until;
        self.all.insert(id, Holder { keys, registered, stays: true, ends_at, progress: now, turned: now, share });
        Some(id)
    }

    /// Returns the participant's share, for as long as it is among the holders.
    pub fn share(&self, id: HolderId) -> Option<HolderShare> {
        self.all.get(&id).map(|it| it.share)
    }

    /// Records that the participant's loop has made progress.
    pub fn made_progress(&mut self, id: HolderId, now: u64) {
        if let Some(holder) = self.all.get_mut(&id) {
            (holder.progress, holder.turned) = (now, now);
        }
    }

    /// Records that the participant's loop turns, and waits for the store. The lease is not renewed for that.
    pub fn waits_for_the_store(&mut self, id: HolderId, now: u64) {
        if let Some(holder) = self.all.get_mut(&id) {
            holder.turned = now;
        }
    }

    /// Records whether the participant's key exists.
    pub fn set_registered(&mut self, id: HolderId, registered: KeyState) {
        if let Some(holder) = self.all.get_mut(&id) {
            holder.registered = registered;
            if !holder.stays && registered == KeyState::No {
                self.all.remove(&id);
            }
        }
    }

    /// Returns whether a participant has registered this key or is about to. One that was dropped counts for as long as
    /// its key exists: it may not have fenced.
    pub fn has(&self, key: &str) -> bool {
        let has = |it: &Holder| it.stays || matches!(it.registered, KeyState::Since(_));
        self.all.values().any(|it| it.keys.key == key && has(it))
    }

    /// Ends the share of a participant that has fenced. Returns `true` if nobody needs the lease any more: it must be
    /// revoked.
    pub fn leave(&mut self, id: HolderId, now: u64) -> bool {
        if let Some(holder) = self.all.get_mut(&id) {
            holder.ends_at = 0;
        }
        self.drop_out(id);
        // A lost holder may not have fenced, nor a dropped one.
        let is_needed = |it: &Holder| it.is_live() || now < it.ends_at;
        self.is_over |= !self.all.values().any(is_needed);
        self.is_over
    }

    /// Ends the renewals for a participant that is gone, perhaps without having fenced.
    pub fn drop_out(&mut self, id: HolderId) {
        if let Some(holder) = self.all.get_mut(&id) {
            holder.stays = false;
            if holder.registered == KeyState::No {
                self.all.remove(&id);
            }
        }
    }

    /// Returns what is to be done at this moment.
    pub fn turn(&mut self, now: u64) -> RenewalTurn {
        let (renewed, stuck) = self.to_renew(now);
        // Without a loop that makes progress and without responses, an outage may be what holds them up.
        let is_known = !renewed.is_empty() || self.confirmed == self.asked;
        let left = if is_known { self.left_over(now, &renewed) } else { Vec::new() };
        if !renewed.is_empty() {
            self.asked = now;
        }
        RenewalTurn { renewed, stuck, left }
    }

    /// Returns the participants for which the lease is to be renewed at this moment, and the keys of those whose loop does
    /// not even turn.
    fn to_renew(&self, now: u64) -> (Vec<HolderId>, Vec<String>) {
        let live = self.all.iter().filter(|(_, it)| it.is_live());
        let (renewed, stuck): (Vec<_>, Vec<_>) =
            live.partition(|(_, it)| has_made_progress(now, it.progress, self.ttl));
        let stuck = stuck.into_iter().filter(|(_, it)| !has_made_progress(now, it.turned, self.ttl));
        let keys = stuck.map(|(_, it)| it.keys.key.clone());
        (renewed.into_iter().map(|(id, _)| *id).collect(), keys.collect())
    }

    /// Records that a renewal for these participants was sent at this moment, and confirmed.
    pub fn confirm(&mut self, sent: u64, renewed: &[HolderId]) {
        let share = self.confirmed_at(sent);
        let ends_at = share.times.stands_until;
        if self.is_unconfirmed(sent) {
            // The store was away, and has kept the lease. All loops were held up; each returns in its own time.
            for holder in self.all.values_mut().filter(|it| it.is_live()) {
                holder.ends_at = holder.ends_at.max(ends_at);
            }
        }
        self.confirmed = sent;
        for id in renewed {
            if let Some(holder) = self.all.get_mut(id).filter(|it| it.is_live()) {
                holder.ends_at = ends_at;
                holder.share = share;
            }
        }
    }

    /// Records that the store has ended the lease.
    pub fn end(&mut self) {
        self.is_over = true;
        for holder in self.all.values_mut() {
            holder.share.lost = true;
        }
    }

    /// Ends all shares, as the store went back and every life ends with that. The store may have the lease still: it is
    /// not renewed, and is revoked once all participants have fenced.
    pub fn lose(&mut self) {
        for holder in self.all.values_mut() {
            holder.share.lost = true;
        }
    }

    /// Returns the keys that have to be deleted, as the lease goes on for others: those of the participants whose share is
    /// over and that are not among the `renewed`. A participant that is stuck is told that its lease is lost. Nobody is,
    /// and no key is returned, until a renewal shows that the lease does go on.
    fn left_over(&mut self, now: u64, renewed: &[HolderId]) -> Vec<LeftOver> {
        if self.is_unconfirmed(now) {
            return Vec::new();
        }
        let is_over = |it: &Holder| it.ends_at <= now && it.registered != KeyState::No;
        let over = self.all.iter_mut().filter(|(id, it)| is_over(it) && !renewed.contains(id));
        let over = over.map(|(id, holder)| {
            holder.share.lost = true;
            LeftOver { id: *id, keys: holder.keys.clone(), registered: holder.registered }
        });
        over.collect()
    }

    /// Returns whether a key still has to be deleted.
    pub fn is_left_over(&self, left: &LeftOver) -> bool {
        self.all.get(&left.id).is_some_and(|it| it.registered == left.registered)
    }

    /// Returns whether nobody trusts the lease any more, by what the store has confirmed.
    pub fn trust_is_over(&self, now: u64) -> bool {
        self.confirmed_at(self.confirmed).times.trusted_until <= now
    }

    /// Returns whether the lease may have ended, by what the store has confirmed.
    fn is_unconfirmed(&self, now: u64) -> bool {
        self.confirmed.saturating_add(self.ttl) <= now
    }

    /// Records that a key was deleted, unless it was put meanwhile: what the deletion saw is then out of date.
    pub fn set_deleted(&mut self, left: &LeftOver) {
        if self.is_left_over(left) {
            self.set_registered(left.id, KeyState::No);
        }
    }

    fn confirmed_at(&self, sent: u64) -> HolderShare {
        HolderShare { times: LeaseTimes::confirmed(sent, self.ttl), lost: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: u64 = 12;

    fn holders() -> Holders {
        Holders::new(TTL)
    }

    fn keys(key: &str) -> OwnKeys {
        OwnKeys { key: key.to_owned(), also: Vec::new() }
    }

    fn registered(holders: &mut Holders, key: &str, now: u64) -> HolderId {
        let id = holders.join(now, keys(key)).unwrap();
        holders.set_registered(id, KeyState::Since(Incarnation::registered_at(7.into())));
        id
    }

    fn is_lost(holders: &Holders, id: HolderId) -> bool {
        holders.share(id).unwrap().lost
    }

    fn names(left: &[LeftOver]) -> Vec<&str> {
        left.iter().map(|left| left.keys.key.as_str()).collect()
    }

    #[test]
    fn a_renewal_counts_only_for_those_that_make_progress() {
        let mut holders = holders();
        let (a, b) = (registered(&mut holders, "a", 0), registered(&mut holders, "b", 0));
        holders.made_progress(a, 7);
        assert_eq!(holders.to_renew(7), (vec![a], vec!["b".to_owned()]));
        let before = holders.share(b).unwrap();
        holders.confirm(7, &[a]);
        assert!(holders.share(a).unwrap().times.trusted_until > before.times.trusted_until);
        assert_eq!(holders.share(b).unwrap(), before);
        assert_eq!(names(&holders.left_over(TTL - 1, &[])), [""; 0], "a lease of its own would still stand");
        assert_eq!(names(&holders.left_over(TTL, &[a])), ["b"]);
        assert!(is_lost(&holders, b) && !is_lost(&holders, a));
        holders.made_progress(b, TTL);
        assert_eq!(holders.to_renew(TTL).0, [a], "what is lost is not renewed");
    }

    #[test]
    fn a_stuck_one_loses_its_key_in_time_although_the_others_have_left() {
        let mut holders = holders();
        let (a, b) = (registered(&mut holders, "a", 0), registered(&mut holders, "b", 0));
        holders.made_progress(b, TTL - 1);
        let renewed = holders.turn(TTL - 1).renewed;
        assert_eq!(renewed, [b]);
        holders.confirm(TTL - 1, &renewed);
        holders.set_registered(b, KeyState::No);
        assert!(!holders.leave(b, TTL - 1), "what is stuck may not have fenced");
        let turn = holders.turn(TTL);
        assert!(turn.renewed.is_empty(), "the store keeps the lease for a TTL more");
        assert_eq!(names(&turn.left), ["a"]);
        assert!(is_lost(&holders, a));
    }

    #[test]
    fn a_store_that_goes_back_ends_all_shares_and_the_lease_is_revoked_once_all_have_fenced() {
        let mut holders = holders();
        let (a, b) = (registered(&mut holders, "a", 0), registered(&mut holders, "b", 0));
        holders.lose();
        assert!(is_lost(&holders, a) && is_lost(&holders, b));
        assert!(holders.turn(1).renewed.is_empty());
        holders.set_registered(a, KeyState::No);
        assert!(!holders.leave(a, 1), "the other one may not have fenced");
        holders.set_registered(b, KeyState::No);
        assert!(holders.leave(b, 1));
    }

    #[test]
    fn an_outage_that_holds_all_loops_up_ends_no_share() {
        let mut holders = holders();
        let a = registered(&mut holders, "a", 0);
        holders.confirm(1, &[]);
        let b = registered(&mut holders, "b", 1);
        assert_eq!(holders.turn(3).renewed, [a, b], "no response comes");
        let turn = holders.turn(TTL);
        assert_eq!((turn.renewed, turn.left), (Vec::new(), Vec::new()), "the share of `a` is over, the lease not yet");
        assert!(!is_lost(&holders, a));
    }

    #[test]
    fn one_whose_renewals_the_store_does_not_confirm_is_not_stuck() {
        let mut holders = holders();
        let a = registered(&mut holders, "a", 0);
        holders.made_progress(a, 2 * TTL);
        let (renewed, _) = holders.to_renew(2 * TTL);
        assert!(holders.left_over(2 * TTL, &renewed).is_empty());
        assert!(!is_lost(&holders, a));
    }

    #[test]
    fn one_that_waits_for_the_store_is_not_renewed_and_not_called_stuck() {
        let mut holders = holders();
        let (a, _) = (registered(&mut holders, "a", 0), registered(&mut holders, "b", 0));
        holders.waits_for_the_store(a, TTL);
        assert_eq!(holders.to_renew(TTL), (Vec::new(), vec!["b".to_owned()]));
        holders.made_progress(a, TTL);
        assert_eq!(holders.to_renew(TTL), (vec![a], vec!["b".to_owned()]));
    }

    #[test]
    fn a_newcomer_trusts_no_renewal_that_nobody_has_confirmed() {
        let mut holders = holders();
        let a = registered(&mut holders, "a", 0);
        holders.made_progress(a, 4);
        let renewed = holders.turn(4).renewed;
        assert_eq!(renewed, [a]);
        let b = registered(&mut holders, "b", 5);
        assert_eq!(holders.share(b), Some(HolderShare { times: LeaseTimes::confirmed(0, TTL), lost: false }));
        holders.confirm(4, &renewed);
        let c = registered(&mut holders, "c", 6);
        assert_eq!(holders.share(c), Some(HolderShare { times: LeaseTimes::confirmed(4, TTL), lost: false }));
        assert_eq!(holders.share(c), holders.share(a));
        // A renewal that was sent without `b` says nothing of its loop.
        assert_eq!(holders.share(b).unwrap().times, LeaseTimes::confirmed(0, TTL));
    }

    #[test]
    fn after_an_outage_longer_than_the_ttl_each_has_a_ttl_to_make_progress_again() {
        let mut holders = holders();
        let (a, b) = (registered(&mut holders, "a", 0), registered(&mut holders, "b", 0));
        let back = 2 * TTL;
        holders.made_progress(a, back);
        let (renewed, _) = holders.to_renew(back);
        assert_eq!(renewed, [a]);
        assert!(holders.left_over(back, &renewed).is_empty(), "nothing was confirmed since the outage");
        holders.confirm(back, &renewed);
        holders.made_progress(a, back + TTL - 1);
        holders.confirm(back + TTL - 1, &[a]);
        assert!(holders.left_over(back + TTL - 1, &[a]).is_empty() && !is_lost(&holders, b));
        assert_eq!(names(&holders.left_over(back + TTL, &[a])), ["b"], "it is stuck");
    }

    #[test]
    fn the_last_one_that_leaves_ends_the_lease_and_nobody_joins_it() {
        let mut holders = holders();
        let (a, b) = (registered(&mut holders, "a", 0), registered(&mut holders, "b", 0));
        holders.set_registered(a, KeyState::No);
        assert!(!holders.leave(a, 1));
        assert!(holders.join(1, keys("c")).is_some_and(|c| !holders.leave(c, 1)));
        assert!(holders.leave(b, 2));
        assert!(holders.join(2, keys("a")).is_none());
    }

    #[test]
    fn a_lease_is_not_revoked_before_the_share_of_one_that_has_not_fenced_is_over() {
        let mut holders = holders();
        let (a, b) = (registered(&mut holders, "a", 0), registered(&mut holders, "b", 0));
        holders.drop_out(a);
        assert!(holders.left_over(TTL - 1, &[]).is_empty());
        assert!(!holders.leave(b, TTL - 1));
        let c = registered(&mut holders, "c", TTL);
        assert!(holders.leave(c, TTL));
    }

    #[test]
    fn only_what_an_attempt_has_left_is_forgotten() {
        let mut holders = holders();
        let (a, _b) = (registered(&mut holders, "a", 0), registered(&mut holders, "b", 0));
        holders.drop_out(a);
        assert!(holders.has("a"), "a life that has not fenced is left to the end of its share");
        holders.set_registered(a, KeyState::No);
        assert!(!holders.has("a"));
    }

    #[test]
    fn a_key_that_a_leaver_could_not_delete_is_deleted_at_once() {
        let mut holders = holders();
        let (a, _b) = (registered(&mut holders, "a", 0), registered(&mut holders, "b", 0));
        holders.leave(a, 1);
        let left = holders.left_over(1, &[]);
        assert_eq!(names(&left), ["a"]);
        assert!(holders.is_left_over(&left[0]));
        holders.set_registered(a, KeyState::No);
        assert!(!holders.is_left_over(&left[0]) && holders.left_over(1, &[]).is_empty());
    }

    #[test]
    fn a_key_that_is_put_while_it_is_looked_for_is_still_deleted() {
        let mut holders = holders();
        let slow = holders.join(0, keys("a")).unwrap();
        holders.set_registered(slow, KeyState::Perhaps);
        holders.confirm(1, &[]);
        let left = holders.left_over(TTL, &[]);
        let put = KeyState::Since(Incarnation::registered_at(8.into()));
        holders.set_registered(slow, put);
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
        holders.set_registered(attempt, KeyState::Perhaps);
        holders.drop_out(attempt);
        holders.confirm(1, &[]);
        let left = holders.left_over(TTL, &[]);
        assert_eq!(names(&left), ["b", "a"]);
        assert!(!holders.has("a"));
        let next = holders.join(TTL, keys("a")).unwrap();
        assert!(holders.has("a") && !holders.is_left_over(&left[1]));
        holders.drop_out(next);
        holders.confirm(TTL, &[]);
        assert_eq!(
            names(&holders.left_over(TTL + 1, &[])),
            ["b", "a"],
            "the next one was stopped before it had looked"
        );
    }
}
