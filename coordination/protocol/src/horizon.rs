//! How far a process has seen its store, and whether the store has gone back since.
//!
//! Pure. A store that is restored from a backup without higher revisions, or that has lost its volume, goes back: revisions
//! that identified lives and handoffs, and the epochs that were taken from them, come again. Every life ends then, and the
//! floor of epochs is raised above what has been used before anybody registers again.
//!
//! Elsewhere: who sees the responses (`store::HorizonStore` of `segue-coordination`), and who raises the floor
//! (`session::register`).
//!
//! # Invariants
//!
//! * The store has gone back only if a response shows it whose member has asked the others, to a request that was sent
//!   after a higher revision had been seen. A member that lags shows lower revisions in its watches and in reads that it
//!   answers by itself, and a response may be overtaken by a later one.
//! * What is used up grows: a floor that is raised to it is above every epoch that this process may have seen.

use std::collections::BTreeMap;

use crate::ids::{Epoch, Revision};
use crate::keys::Keyspace;
use crate::records::{KeyspaceConfig, encode};
use crate::txn::{Compare, KeyValue, Op, Txn};
use crate::view::View;

/// What a process has seen of its store. The number of times that the store went back tells the store's pasts apart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Horizon {
    /// How often the store went back.
    times: u64,
    /// The highest revision since the store went back last.
    highest: Revision,
    /// The floor of epochs of each keyspace, by its root, since then.
    floors: BTreeMap<String, Epoch>,
    /// The highest epochs that may have been used before: by keyspace, and at least in each.
    used: BTreeMap<String, Epoch>,
    used_everywhere: Epoch,
}

/// The moment at which a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestMoment {
    times: u64,
    highest: Revision,
}

/// The store went back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WentBack {
    /// The highest revision that had been seen.
    pub from: Revision,
    /// The revision of the response that shows it.
    pub to: Revision,
}

impl Horizon {
    /// Returns how often the store went back.
    pub fn times(&self) -> u64 {
        self.times
    }

    /// Notes that a request is sent.
    pub fn ask(&self) -> RequestMoment {
        RequestMoment { times: self.times, highest: self.highest }
    }

    /// Records the response to a request whose member has asked the others. Returns whether it shows that the store went back.
    pub fn answered(&mut self, asked: RequestMoment, revision: Revision) -> Option<WentBack> {
        if revision >= asked.highest || asked.times < self.times {
            self.saw(asked, revision);
            return None;
        }
        let went_back = WentBack { from: self.highest, to: revision };
        for (root, floor) in std::mem::take(&mut self.floors) {
            let used = self.used.entry(root).or_default();
            *used = (*used).max(Epoch::planned_at(floor, self.highest));
        }
        self.use_up(self.highest);
        (self.times, self.highest) = (self.times + 1, revision);
        Some(went_back)
    }

    /// Records a revision of a response or a watch that may lag.
    pub fn saw(&mut self, asked: RequestMoment, revision: Revision) {
        if asked.times == self.times {
            self.highest = self.highest.max(revision);
        } else {
            // It may be from before the store went back.
            self.use_up(revision);
        }
    }

    /// Records the floor of epochs that a view shows.
    pub fn saw_floor(&mut self, view: &View) {
        let floor = self.floors.entry(view.keys().root().to_owned()).or_default();
        *floor = (*floor).max(view.epoch_floor());
    }

    /// Returns whether the view shows a higher floor than any before it: another process has seen the store go back.
    pub fn is_raised(&self, view: &View) -> bool {
        self.floors.get(view.keys().root()).is_some_and(|known| view.epoch_floor() > *known)
    }

    /// Returns the number that may have been used up as an epoch of this keyspace before the store went back. 0 if it never
    /// did.
    pub fn used(&self, keys: &Keyspace) -> Epoch {
        self.used.get(keys.root()).copied().unwrap_or_default().max(self.used_everywhere)
    }

    fn use_up(&mut self, revision: Revision) {
        self.used_everywhere = self.used_everywhere.max(Epoch::planned_at(Epoch::default(), revision));
    }
}

/// Returns why a life ends that began under the floor `began`, if it does: the store went back, as another process has seen
/// or as this one knows by what is `used` up.
pub fn ends_life(view: &View, began: Epoch, used: Epoch) -> Option<&'static str> {
    if view.epoch_floor() > began {
        return Some("the floor of epochs was raised");
    }
    let is_low = view.config.as_ref().is_some_and(|config| is_low(&config.value, used));
    is_low.then_some("the floor of epochs is not above what was used before the store went back")
}

/// Raises the floor of epochs above what is `used` up. `None` if it is high enough, or if there are no settings that can be
/// read: nothing is planned without them. `config` is their key.
pub fn raise(key: &str, config: Option<&KeyValue>, used: Epoch) -> Option<Txn> {
    let entry = config?;
    let settings: KeyspaceConfig = serde_json::from_slice(&entry.value).ok()?;
    if !is_low(&settings, used) {
        return None;
    }
    let value = encode(&KeyspaceConfig { epoch_floor: used.next().min(Epoch::MAX), ..settings });
    Some(Txn::guarded([Compare::unchanged_since(key, entry.mod_revision)], [Op::put(key.to_owned(), value)]))
}

fn is_low(settings: &KeyspaceConfig, used: Epoch) -> bool {
    used > Epoch::default() && settings.epoch_floor <= used && settings.epoch_floor < Epoch::MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txn::Snapshot;

    fn keys() -> Keyspace {
        Keyspace::new("/segue/", "test")
    }

    fn at(revision: u64) -> Revision {
        Revision::new(revision)
    }

    fn config(epoch_floor: u64, mod_revision: u64) -> KeyValue {
        let value = format!(r#"{{"partitions":4,"epoch_floor":{epoch_floor},"of_a_later_version":1}}"#).into_bytes();
        KeyValue { key: keys().config(), value, create_revision: at(1), mod_revision: at(mod_revision), lease: None }
    }

    fn view(epoch_floor: u64, revision: u64) -> View {
        let entries = vec![config(epoch_floor, revision)];
        View::from_snapshot(keys(), Snapshot { revision: at(revision), entries })
    }

    /// Goes back as far as a response shows.
    fn go_back(horizon: &mut Horizon, to: u64) -> Option<WentBack> {
        horizon.answered(horizon.ask(), at(to))
    }

    #[test]
    fn only_a_response_that_was_asked_for_after_a_higher_revision_shows_that_the_store_went_back() {
        let mut horizon = Horizon::default();
        let early = horizon.ask();
        assert_eq!(horizon.answered(early, at(100)), None);
        assert_eq!(horizon.answered(early, at(90)), None, "a later response has overtaken it");
        let before = horizon.ask();
        horizon.saw(before, at(80));
        assert_eq!(horizon.answered(before, at(100)), None, "a watch may lag");
        assert_eq!((horizon.times(), horizon.used(&keys())), (0, Epoch::default()));

        assert_eq!(go_back(&mut horizon, 84), Some(WentBack { from: at(100), to: at(84) }));
        assert_eq!(horizon.answered(before, at(83)), None, "it was asked for before");
        horizon.saw(before, at(105));
        assert_eq!(go_back(&mut horizon, 85), None, "the late change was from before the store went back");
        assert_eq!((horizon.times(), horizon.used(&keys())), (1, Epoch::new(105)));
    }

    #[test]
    fn what_is_used_up_counts_the_floor_under_which_it_was_used_however_often_the_store_goes_back() {
        let mut horizon = Horizon::default();
        horizon.saw_floor(&view(0, 100));
        assert_eq!(go_back(&mut horizon, 100), None);
        assert!(go_back(&mut horizon, 50).is_some());
        assert_eq!(horizon.used(&keys()), Epoch::new(100));
        // Raised to 101, and epochs go on to 101 + 120.
        horizon.saw_floor(&view(101, 51));
        assert!(!horizon.is_raised(&view(101, 52)) && horizon.is_raised(&view(102, 52)));
        assert_eq!(go_back(&mut horizon, 120), None);
        assert!(go_back(&mut horizon, 60).is_some());
        assert_eq!(horizon.used(&keys()), Epoch::new(221));
        assert_eq!(horizon.used(&Keyspace::new("/segue/", "other")), Epoch::new(120));
    }

    #[test]
    fn a_life_ends_when_the_floor_is_raised_or_is_not_above_what_is_used_up() {
        let (none, used) = (Epoch::default(), Epoch::new(100));
        assert_eq!(ends_life(&view(0, 5), none, none), None);
        assert_eq!(ends_life(&view(101, 5), Epoch::new(101), used), None);
        assert!(ends_life(&view(101, 5), none, none).is_some(), "another process has seen it");
        assert!(ends_life(&view(100, 5), used, used).is_some(), "nobody has raised it far enough");
        let mut seen = view(101, 5);
        seen.resync(view(0, 6));
        assert_eq!(seen.epoch_floor(), Epoch::new(101), "it does not fall");
        assert_eq!(ends_life(&View::empty(keys()), used, used), None, "nothing is planned without settings");
    }

    #[test]
    fn the_floor_is_raised_above_what_is_used_up_and_every_other_field_stays() {
        let (key, used) = (keys().config(), Epoch::new(100));
        let raised = |floor, used| raise(&key, Some(&config(floor, 7)), used);
        assert_eq!(raised(101, used), None);
        assert_eq!(raised(0, Epoch::default()), None, "the store never went back");
        assert_eq!(raise(&key, None, used), None);
        assert_eq!(raise(&key, Some(&KeyValue { value: b"{".to_vec(), ..config(0, 7) }), used), None);
        let txn = raised(100, used).unwrap();
        assert_eq!(txn.when, [Compare::unchanged_since(&key, at(7))]);
        let [Op::Put { value, .. }] = &txn.then[..] else { panic!("{txn:?}") };
        let settings: KeyspaceConfig = serde_json::from_slice(value).unwrap();
        assert_eq!((settings.epoch_floor, settings.partitions), (Epoch::new(101), 4));
        assert!(settings.unknown.contains_key("of_a_later_version"));
        assert_eq!(raised(Epoch::MAX.get(), Epoch::MAX), None, "no epoch is left");
    }
}
