//! `segue check --store`: measures whether a store is fast enough for the lease times of the files that name it, and has
//! the files compared with their keyspaces.
//!
//! The measurement writes one key beside the keyspaces, which nobody watches, under a lease of its own.

use std::sync::Arc;
use std::time::Duration;

use segue_config::{Config, LocatedConfig, StoreKind, readable, show_duration};
use segue_coordination::store::{EtcdMember, Store, StoreError, Usage, Watch};
use segue_protocol::ids::Revision;
use segue_protocol::planning::Notice;
use segue_protocol::txn::{Keys, Op, Txn};
use tokio::time::{Instant, timeout};

use super::compare_store::Differences;
use super::output::{print_text, remark};
use super::store::open_etcd;
use super::{CommandFailure, runtime};

/// Most writes, and leases.
const WRITES: usize = 50;
const LEASES: usize = 10;
/// TTL of the leases, which end by themselves if this process is interrupted.
const TTL: Duration = Duration::from_secs(30);
/// How long the event of a write may take to arrive.
const EVENT_TIMEOUT: Duration = Duration::from_secs(10);
/// The part of a lease's TTL that an answer of the store may take. A third of it is the time between two renewals.
const SHARE: u32 = 10;

/// Measures each store that the files name, and reports it.
pub(super) fn measure(files: &[LocatedConfig]) -> Result<(), CommandFailure> {
    let configs: Vec<&Config> = files.iter().map(|file| &file.config).collect();
    if configs.iter().any(|config| config.store.kind == StoreKind::Memory) {
        let text = "segue: --store: expected store.kind = \"etcd\": a store in memory exists only within its process";
        return Err(CommandFailure::BadInput(text.to_owned()));
    }
    let at = |config: &Config| (config.store.endpoints.clone(), config.store.prefix.clone());
    let mut stores: Vec<&Config> = Vec::new();
    for config in &configs {
        if stores.iter().all(|known| at(known) != at(config)) {
            stores.push(config);
        }
    }
    let mut problems = Vec::new();
    for store in stores {
        let name = store.store.endpoints.join(", ");
        let (etcd, runtime) = (open_etcd(store)?, runtime()?);
        let members = runtime.block_on(etcd.members());
        for warning in doubts(&members) {
            remark(format!("warning: {warning}"));
        }
        if let Some(problem) = several_clusters(&members) {
            return Err(CommandFailure::Work(anyhow::Error::msg(format!("store {name}: {problem}"))));
        }
        let usage = runtime.block_on(etcd.usage(&store.store.prefix, Usage::FIRST));
        if let Some(usage) = usage.ok().flatten().filter(Usage::fills_up) {
            let (bytes, quota) = (usage.bytes, usage.quota());
            remark(format!("warning: store {name}: {}", Notice::StoreFillsUp { bytes, quota }));
        }
        let failed = |error: StoreError| {
            let is_silent = matches!(error, StoreError::Unavailable(_));
            let error = anyhow::Error::new(error).context(format!("store {name}"));
            if is_silent { CommandFailure::Unreachable(error) } else { CommandFailure::Work(error) }
        };
        let etcd = Arc::new(etcd);
        let times = runtime.block_on(StoreTimes::of(etcd.clone(), &store.store.prefix)).map_err(failed)?;
        print_text(&format!("store {name}: {}\n", times.in_words()))?;
        let leases = configs.iter().filter(|config| at(config) == at(store)).flat_map(|config| leases(config));
        for warning in times.too_slow_for(leases) {
            remark(format!("warning: {warning}"));
        }
        for file in files.iter().filter(|file| at(&file.config) == at(store)) {
            let found = runtime.block_on(Differences::of(file, &*etcd)).map_err(failed)?;
            for warning in &found.warnings {
                remark(format!("warning: {warning}"));
            }
            problems.extend(found.problems.iter().map(ToString::to_string));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(CommandFailure::BadInput(problems.join("\n"))) }
}

/// Returns the TTLs of a file's roles, by their keys.
fn leases(config: &Config) -> impl Iterator<Item = (&'static str, Duration)> {
    let router = config.router.as_ref().map(|role| ("router.lease_ttl", role.lease_ttl));
    let coordinator = config.coordinator.as_ref().map(|role| ("coordinator.lease_ttl", role.lease_ttl));
    let pod = config.pod.as_ref().map(|role| ("pod.lease_ttl", role.lease_ttl));
    [router, coordinator, pod].into_iter().flatten()
}

/// What each endpoint says of itself.
type StoreMembers = [(String, Result<EtcdMember, StoreError>)];

/// Returns a warning for each endpoint that serves nobody, if another one does.
fn doubts(members: &StoreMembers) -> Vec<String> {
    if members.iter().all(|(_, member)| member.is_err()) {
        return Vec::new();
    }
    let doubt = |(endpoint, member): &(String, Result<EtcdMember, StoreError>)| match member {
        Ok(member) if member.is_learner => Some(format!("{endpoint} is a learner, and is passed over")),
        Ok(_) => None,
        Err(error) => Some(format!("{endpoint}: {error}")),
    };
    members.iter().filter_map(doubt).collect()
}

/// Returns which endpoint belongs to which cluster, if that is not the same for all.
fn several_clusters(members: &StoreMembers) -> Option<String> {
    let known: Vec<(&String, u64)> =
        members.iter().filter_map(|(endpoint, member)| Some((endpoint, member.as_ref().ok()?.cluster?))).collect();
    let (_, first) = known.first()?;
    if known.iter().all(|(_, cluster)| cluster == first) {
        return None;
    }
    let all: Vec<String> = known.iter().map(|(endpoint, cluster)| format!("{endpoint} to {cluster:x}")).collect();
    Some(format!("the endpoints belong to different etcd clusters: {}; expected one", all.join(", ")))
}

/// How long the store took for each request of a kind.
#[derive(Debug, Default)]
struct StoreTimes {
    commits: Vec<Duration>,
    /// From the answer to a write until its event arrived.
    events: Vec<Duration>,
    grants: Vec<Duration>,
    renewals: Vec<Duration>,
}

impl StoreTimes {
    async fn of(store: Arc<dyn Store>, prefix: &str) -> Result<Self, StoreError> {
        let key = format!("{prefix}~check/{:016x}", rand::random::<u64>());
        let mut times = StoreTimes::default();
        for _ in 0..LEASES {
            let begun = Instant::now();
            let lease = store.grant(TTL).await?;
            times.grants.push(begun.elapsed());
            let begun = Instant::now();
            store.keep_alive(lease).await?;
            times.renewals.push(begun.elapsed());
            store.revoke(lease).await?;
        }
        let keys = Keys::One(key.clone());
        let lease = store.grant(TTL).await?;
        let mut watch = store.watch(&keys, store.snapshot(&keys).await?.revision.next()).await?;
        // A store so slow that the key's lease would end is measured by fewer writes.
        let last = Instant::now() + TTL / 2;
        for number in 0..WRITES {
            if Instant::now() > last {
                break;
            }
            let put = Op::Put { key: key.clone(), value: number.to_string().into_bytes(), lease: Some(lease) };
            let begun = Instant::now();
            let revision = store.commit(Txn { then: vec![put], ..Txn::default() }).await?.revision;
            times.commits.push(begun.elapsed());
            let answered = Instant::now();
            timeout(EVENT_TIMEOUT, reached(&mut watch, revision)).await.map_err(|_| silent(number))??;
            times.events.push(answered.elapsed());
        }
        // Deletes the key as well.
        store.revoke(lease).await?;
        Ok(times)
    }

    fn in_words(&self) -> String {
        let of = |times: &[Duration]| format!("{} (at most {})", readable(median(times)), readable(slowest(times)));
        format!(
            "a write takes {}, and its event arrives {} later; a lease is granted in {} and renewed in {}",
            of(&self.commits),
            of(&self.events),
            of(&self.grants),
            of(&self.renewals)
        )
    }

    /// Returns a warning for each of these leases that the store is too slow for.
    fn too_slow_for(&self, leases: impl Iterator<Item = (&'static str, Duration)>) -> Vec<String> {
        let slowest = [&self.commits, &self.grants, &self.renewals].map(|times| slowest(times)).into_iter().max();
        let slowest = slowest.unwrap_or_default();
        let short = leases.filter(|(_, ttl)| slowest > *ttl / SHARE);
        let warning = |(key, ttl): (&str, Duration)| {
            format!(
                "the store took up to {}, more than a tenth of {key} = \"{}\": renewals may come too late. Give etcd a \
                 faster disk, or raise the lease time",
                readable(slowest),
                show_duration(ttl)
            )
        };
        short.map(warning).collect()
    }
}

/// Follows the watch up to this revision.
async fn reached(watch: &mut Watch, revision: Revision) -> Result<(), StoreError> {
    while watch.next().await?.revision < revision {}
    Ok(())
}

/// Returns the error of a watch that brings nothing after this many events.
fn silent(events: usize) -> StoreError {
    StoreError::Unavailable(
        format!(
            "it accepts writes, but its watch is silent: expected the event of each write within {}, got {events} of \
         {WRITES} events",
            show_duration(EVENT_TIMEOUT)
        )
        .into(),
    )
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn slowest(times: &[Duration]) -> Duration {
    times.iter().max().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use segue_coordination::store::{Fault, FaultyStore, MemoryStore, StoreCall};
    use segue_protocol::keys::Keyspace;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silent_watch_fails_the_measurement_within_seconds() {
        let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())));
        store.set_rule(|call| if matches!(call, StoreCall::Watch(_)) { Fault::Silence } else { Fault::Pass });
        let measured = timeout(2 * EVENT_TIMEOUT, StoreTimes::of(store, "/segue/")).await.expect("it ends");
        let error = measured.unwrap_err().to_string();
        assert!(error.contains("expected the event of each write within 10s, got 0 of 50"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_takes_seconds_for_a_write_is_measured_by_fewer() {
        let commit = Duration::from_secs(4);
        let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())));
        store.set_rule(move |call| match call {
            StoreCall::Commit(_) => Fault::hold(sleep(commit)),
            _ => Fault::Pass,
        });
        let times = StoreTimes::of(store, "/segue/").await.unwrap();
        assert_eq!((slowest(&times.commits), times.commits.len()), (commit, 4));
    }

    #[test]
    fn a_lease_is_too_short_if_an_answer_takes_over_a_tenth_of_it() {
        let quick = vec![Duration::from_millis(1); 9];
        let times = StoreTimes {
            commits: [quick.clone(), vec![Duration::from_millis(300)]].concat(),
            events: vec![Duration::from_secs(9)],
            grants: quick.clone(),
            renewals: quick,
        };
        let leases = [("router.lease_ttl", Duration::from_secs(2)), ("pod.lease_ttl", Duration::from_secs(3))];
        let warnings = times.too_slow_for(leases.into_iter());
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("the store took up to 300 ms, more than a tenth of router.lease_ttl = \"2s\""));
        assert!(times.in_words().starts_with("a write takes 1.0 ms (at most 300 ms), and its event arrives 9.0 s"));
    }

    #[tokio::test]
    async fn a_measurement_leaves_nothing_in_the_store() {
        let store = Arc::new(MemoryStore::new());
        let times = StoreTimes::of(store.clone(), "/segue/").await.unwrap();
        assert_eq!([times.commits.len(), times.events.len(), times.grants.len()], [WRITES, WRITES, LEASES]);
        assert_eq!(store.snapshot(&Keys::Prefix("/segue/".to_owned())).await.unwrap().entries, []);
        assert!(!Keyspace::new("/segue/", "default").followed().contains("/segue/~check/1"), "nobody watches it");
    }
}
