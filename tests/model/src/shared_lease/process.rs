//! The process: what its parts and the task that renews their lease do around production's decisions.
//!
//! It mirrors `lease.rs`, `leases.rs` and `registration.rs` of `coordination/src/session` by hand.

use segue_protocol::holders::{HolderId, Holders, KeyState, LeftOver, RenewalTurn};
use segue_protocol::ids::{Incarnation, LeaseId};
use segue_protocol::registration::{ExistingKey, OwnKeys, clear_obstacle, end, register};
use segue_protocol::txn::Txn;

use super::state::{Ghost, Kept, Look, Part, Renewal, Request, Stage, State};
use super::step::Ending;
use super::store::Response;
use super::{KEYS, Rule, SharedLease, TTL};

fn own_keys(part: usize) -> OwnKeys {
    OwnKeys { key: KEYS[part].to_owned(), also: Vec::new() }
}

impl SharedLease {
    fn lacks(&self, rule: Rule) -> bool {
        self.without == Some(rule)
    }

    /// A deletion as it is sent.
    fn sent(&self, mut txn: Txn) -> Txn {
        if self.lacks(Rule::DeletesOneLife) {
            txn.when.clear();
        }
        txn
    }

    /// Returns what an attempt does about the key that stands in its way: `None` if it waits.
    pub(super) fn clears(&self, state: &State, part: usize) -> Option<Txn> {
        let key = KEYS[part];
        let entry = state.store.get(key)?;
        let has_forgotten = |lease: LeaseId| {
            let newest = state.kept(state.newest);
            newest.is_some_and(|it| it.id == lease && (self.lacks(Rule::DroppedKeepsKey) || !it.holders.has(key)))
        };
        let standing = ExistingKey {
            incarnation: Incarnation::registered_at(entry.create_revision),
            mod_revision: entry.mod_revision,
            lease: entry.lease,
            is_forgotten: entry.lease.is_some_and(has_forgotten),
        };
        clear_obstacle(key, standing, state.parts[part].ended, false)
    }

    pub(super) fn attempt(&self, state: &mut State, part: usize) {
        if let Some(clear) = self.clears(state, part) {
            state.store.commit(&clear);
            return;
        }
        let now = state.now;
        let newest = state.newest;
        let joined = state.kept_mut(newest).and_then(|kept| Some((kept.id, join(kept, now, part)?)));
        let (lease, holder) = joined.unwrap_or_else(|| {
            let id = state.store.grant(now);
            let mut kept = Kept {
                id,
                base: now,
                holders: Holders::new(TTL),
                turn: now,
                confirmed: now,
                renewal: None,
                looks: Vec::new(),
                is_gone: false,
            };
            let Some(holder) = join(&mut kept, now, part) else { unreachable!("nobody has ended a new lease") };
            state.newest = id;
            state.leases.push(kept);
            (id, holder)
        });
        if !self.lacks(Rule::AttemptsAreLookedAfter) {
            self.note(state, lease, |holders| holders.set_registered(holder, KeyState::Perhaps));
        }
        let heard = state.kept(lease).map_or(0, |kept| kept.confirmed);
        let stage = Stage::Putting { lease, holder, response: None };
        state.parts[part] = Part { stage, heard, ..state.parts[part] };
    }

    pub(super) fn arrive(&self, state: &mut State, part: usize) {
        if let Stage::Putting { lease, holder, .. } = state.parts[part].stage {
            let response = Some(state.store.commit(&register(KEYS[part], Vec::new(), lease)));
            state.parts[part].stage = Stage::Putting { lease, holder, response };
        }
    }

    pub(super) fn answer(&self, state: &mut State, part: usize) {
        let Stage::Putting { lease, holder, response: Some(response) } = state.parts[part].stage else { return };
        let Response::Committed(life) = response else {
            if response == Response::LeaseNotFound {
                self.note(state, lease, Holders::end);
            }
            state.parts[part].stage = Stage::Starting;
            return self.leave_lease(state, lease, holder, Ending::Done);
        };
        let now = state.now;
        let Some(kept) = state.kept_mut(lease) else { return };
        kept.holders.set_registered(holder, KeyState::Since(life));
        kept.holders.made_progress(holder, now - kept.base);
        // A share can end during a put.
        let was_stuck = kept.holders.share(holder).is_none_or(|share| share.lost);
        let stage = Stage::On { lease, holder, life, owns: false };
        state.parts[part] = Part { stage, was_stuck, ..state.parts[part] };
    }

    /// The put may still arrive.
    pub(super) fn give_up(&self, state: &mut State, part: usize) {
        let Stage::Putting { lease, holder, response } = state.parts[part].stage else { return };
        if response.is_none() {
            state.under_way.push(Request::Commit(register(KEYS[part], Vec::new(), lease)));
        }
        state.parts[part].stage = Stage::Starting;
        self.leave_lease(state, lease, holder, Ending::Done);
    }

    /// Ends the registration of a part that has fenced.
    pub(super) fn withdraw(&self, state: &mut State, part: usize, ending: Ending, next: Stage) {
        let Stage::On { lease, holder, life, .. } = state.parts[part].stage else { return };
        state.parts[part] = Part { stage: next, ended: life, ..Part::STARTING };
        let deletion = self.sent(end(&own_keys(part), life));
        match ending {
            Ending::Done | Ending::LeaseLater => {
                state.store.commit(&deletion);
                self.note(state, lease, |holders| holders.set_registered(holder, KeyState::No));
            }
            Ending::KeyLater | Ending::Unanswered => state.under_way.push(Request::Commit(deletion)),
        }
        if ending == Ending::Unanswered {
            self.note(state, lease, |holders| holders.drop_out(holder));
            drop_unheld(state);
        } else {
            self.leave_lease(state, lease, holder, ending);
        }
    }

    fn leave_lease(&self, state: &mut State, lease: LeaseId, holder: HolderId, ending: Ending) {
        let now = state.now;
        let Some(kept) = state.kept_mut(lease) else { return };
        let mut after = kept.holders.clone();
        let is_last = after.leave(holder, now - kept.base);
        if self.lacks(Rule::NobodyJoinsTheEnd) {
            kept.holders.drop_out(holder);
        } else {
            kept.holders = after;
        }
        kept.holders.drop_out(holder);
        match (is_last, ending) {
            (true, Ending::LeaseLater) => state.under_way.push(Request::Revoke(lease)),
            (true, _) => state.store.end(lease),
            (false, _) => {}
        }
        drop_unheld(state);
    }

    /// Drops a part, which continues its work as long as its share lets it.
    pub(super) fn drop_part(&self, state: &mut State, part: usize) {
        let until = state.works_until(part);
        match state.parts[part].stage {
            Stage::Off | Stage::Starting => {}
            Stage::Putting { lease, holder, response } => {
                if response.is_none() {
                    state.under_way.push(Request::Commit(register(KEYS[part], Vec::new(), lease)));
                }
                self.note(state, lease, |holders| holders.drop_out(holder));
            }
            Stage::On { lease, holder, owns, .. } => {
                if owns {
                    state.ghosts.insert(Ghost { part, until });
                }
                let now = state.now;
                let ends_at_once = self.lacks(Rule::DroppedKeepsShare);
                if let Some(kept) = state.kept_mut(lease) {
                    let _ = ends_at_once && kept.holders.leave(holder, now - kept.base);
                    kept.holders.drop_out(holder);
                }
            }
        }
        state.parts[part] = Part { stage: Stage::Off, ..Part::STARTING };
        drop_unheld(state);
    }

    /// The turn of the task that renews the lease.
    pub(super) fn renew(&self, state: &mut State, lease: LeaseId, is_lost: bool, deletes_later: bool) {
        let now = state.now;
        let healthy = [0, 1].map(|part| state.parts[part].moves());
        let Some(kept) = state.kept_mut(lease) else { return };
        (kept.turn, kept.renewal) = (now, None);
        kept.looks.clear();
        let RenewalTurn { renewed, left, .. } = kept.holders.turn(now - kept.base);
        if is_lost {
            return;
        }
        for left in left.into_iter().filter(|_| !renewed.is_empty() || !self.lacks(Rule::StuckAloneLosesKey)) {
            self.delete(state, lease, left, deletes_later);
        }
        if renewed.is_empty() {
            return;
        }
        let is_confirmed = state.store.renew(lease, now);
        if let Some(kept) = state.kept_mut(lease) {
            kept.renewal = Some(Renewal { sent: now, renewed, healthy, is_confirmed });
        }
    }

    fn delete(&self, state: &mut State, lease: LeaseId, left: LeftOver, later: bool) {
        match left.registered {
            _ if self.lacks(Rule::LeftOversAreDeleted) => {}
            KeyState::No => {}
            KeyState::Since(life) => self.delete_life(state, lease, &left, life, later),
            KeyState::Perhaps => {
                if let Some(kept) = state.kept_mut(lease) {
                    kept.looks.push(Look { left, seen: None });
                }
            }
        }
    }

    /// The store is asked for the key of an attempt.
    pub(super) fn read(&self, state: &mut State, lease: LeaseId, part: usize) {
        let entry = state.store.get(KEYS[part]).filter(|entry| entry.lease == Some(lease));
        let seen = entry.map(|entry| Incarnation::registered_at(entry.create_revision));
        let looks = state.kept_mut(lease).map(|kept| &mut kept.looks);
        looks.into_iter().flatten().filter(|it| it.left.keys.key == KEYS[part]).for_each(|it| it.seen = Some(seen));
    }

    /// The response to the look at an attempt's key arrives.
    pub(super) fn look(&self, state: &mut State, lease: LeaseId, later: bool) {
        let Some(kept) = state.kept_mut(lease) else { return };
        let Look { left, seen } = kept.looks.remove(0);
        match seen.flatten().filter(|_| self.lacks(Rule::LooksAgain) || kept.holders.is_left_over(&left)) {
            Some(life) => self.delete_life(state, lease, &left, life, later),
            None => kept.holders.set_deleted(&left),
        }
    }

    fn delete_life(&self, state: &mut State, lease: LeaseId, left: &LeftOver, life: Incarnation, later: bool) {
        let deletion = self.sent(end(&left.keys, life));
        if later {
            state.under_way.push(Request::Commit(deletion));
        } else {
            state.store.commit(&deletion);
            self.note(state, lease, |holders| holders.set_deleted(left));
        }
    }

    pub(super) fn hear(&self, state: &mut State, lease: LeaseId) {
        let Some(kept) = state.kept_mut(lease) else { return };
        let Some(Renewal { sent, renewed, healthy, is_confirmed }) = kept.renewal.take() else { return };
        if !is_confirmed {
            kept.is_gone = true;
            return kept.holders.end();
        }
        kept.holders.confirm(sent - kept.base, &renewed);
        // A lease that returns after it may have ended gives everybody a whole term.
        let returns = kept.confirmed + TTL <= sent;
        kept.confirmed = sent;
        state.slips += if returns { TTL } else { 0 };
        for (part, _) in state.parts.iter_mut().zip(healthy).filter(|(_, is_healthy)| *is_healthy) {
            // The part may have registered anew since.
            if part.lease().is_some_and(|(of, holder)| of == lease && renewed.contains(&holder)) {
                part.heard = sent;
            }
        }
    }

    fn note(&self, state: &mut State, lease: LeaseId, note: impl FnOnce(&mut Holders)) {
        if let Some(kept) = state.kept_mut(lease) {
            note(&mut kept.holders);
        }
    }
}

fn join(kept: &mut Kept, now: u64, part: usize) -> Option<HolderId> {
    kept.holders.join(now - kept.base, own_keys(part))
}

/// A lease that no part holds is not renewed any more.
pub(super) fn drop_unheld(state: &mut State) {
    let parts = state.parts;
    // One that ends its lease holds it until the store has responded.
    let ends = |kept: &Kept| state.under_way.contains(&Request::Revoke(kept.id));
    let is_held = |kept: &Kept| parts.iter().filter_map(Part::lease).any(|(lease, _)| lease == kept.id) || ends(kept);
    // Nobody deletes what is left under one that nobody holds: it stands until the lease ends.
    let is_left = |kept: &&Kept| !is_held(kept) && state.store.has(kept.id);
    state.slips += TTL / 2 * state.leases.iter().filter(is_left).count() as u64;
    state.leases.retain(is_held);
}
