//! Registers a pod, or resumes a registration by its token.

use std::sync::Arc;
use std::time::Duration;

use segue_coordination::session::{raise_floor, unix_millis};
use segue_coordination::store::StoreError;
use segue_protocol::ids::{Epoch, Incarnation, LeaseId, PartitionId, Revision};
use segue_protocol::records::{PodRecord, PodStream, encode};
use segue_protocol::registration::{Attachment, attachment, put_back};
use segue_protocol::txn::{Compare, Keys, Op, Txn};
use segue_protocol::view::View;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tonic::Status;
use tracing::{Instrument as _, info};

use crate::hello;
use crate::hold::RegistrationHold;
use crate::proto::{AckOutcome, Hello};
use crate::sessions::{Attendance, LastPoll, UnrecordedAck};
use crate::shared::{KeyspaceService, unavailable};
use crate::token::{Secret, Token};

/// How long the view may take to show a change of this keyspace. It never shows the revision of a write elsewhere in the store.
const VIEW_LAG: Duration = Duration::from_millis(100);

/// How long the store may take to renew a lease or to restore a record.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// A pod whose registration is alive. A view of revision `seen` or later shows all that the pod can have been told.
#[derive(Debug)]
pub(crate) struct AttachedPod {
    pub(crate) token: Token,
    pub(crate) resumed: bool,
    pub(crate) seen: Revision,
    pub(crate) hold: Arc<RegistrationHold>,
    /// The pod's last Poll here, if no other instance can have told the pod anything newer.
    pub(crate) last: Option<LastPoll>,
    pub(crate) attendance: Attendance,
    record: PodRecord,
}

impl AttachedPod {
    pub(crate) fn name(&self) -> &str {
        &self.token.pod
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.token.incarnation()
    }

    pub(crate) fn lease(&self) -> LeaseId {
        self.token.lease()
    }

    /// Returns the record, as it was registered.
    pub(crate) fn record(&self) -> &PodRecord {
        &self.record
    }

    /// Notes that the token is on its way to the pod.
    pub(crate) fn told(&self) {
        self.hold.told();
    }

    /// Checks that the registration exists, and restores it if another writer has detached it from its lease.
    pub(crate) async fn keep_registration(&mut self, shared: &KeyspaceService) -> Result<(), Status> {
        let restore = match self.is_registered(&shared.hub.view()) {
            Ok(true) => return Ok(()),
            Ok(false) => return Err(self.is_over()),
            Err(restore) => restore,
        };
        match timeout(STORE_TIMEOUT, shared.store.commit(restore)).await {
            Ok(Ok(outcome)) if outcome.committed() => {
                info!(pod = self.name(), "registration restored");
                shared.hub.shows(outcome.revision).await
            }
            // The record has changed again, or the store does not answer. The next change, heartbeat or Poll runs this again.
            _ => Ok(()),
        }
    }

    pub(crate) fn is_over(&self) -> Status {
        Status::not_found(format!("the registration of pod {} is over; register again", self.name()))
    }

    /// Returns whether the registration is still there. `Err` with the transaction that restores it if another writer
    /// has detached it from its lease.
    fn is_registered(&mut self, view: &View) -> Result<bool, Txn> {
        let key = view.pod_key(self.name());
        match attachment(key.as_ref(), self.incarnation(), self.lease()) {
            Attachment::Gone => Ok(false),
            Attachment::Attached => {
                // A status that an operator wrote with the lease is a request, and is kept.
                if let Some(record) = view.live_pod(self.name(), self.incarnation()) {
                    self.record.status = record.status;
                }
                Ok(true)
            }
            Attachment::Detached(seen) => {
                let (name, value) = (view.keys().pod(self.name()), encode(&timed(self.record.clone())));
                Err(put_back(&name, self.incarnation(), seen, value, self.lease()))
            }
        }
    }
}

/// Refuses to go on with a life that the store has ended by going back, as this instance has seen or another one says by the
/// floor of epochs. The key ends with its lease, which nobody renews any more: until then the pod may serve.
pub(crate) fn ensure_goes_on(shared: &KeyspaceService, token: &Token) -> Result<(), Status> {
    match shared.horizon.ends_life(&shared.hub.view(), token.floor()) {
        Some(why) => {
            let pod = &token.pod;
            Err(Status::not_found(format!("the registration of pod {pod} is over, because {why}; register again")))
        }
        None => Ok(()),
    }
}

/// Registers the pod of `hello`, or goes on with its registration. `after` is the revision of what a pod that polls was told
/// last, by whichever instance.
pub(crate) async fn attach(
    shared: &Arc<KeyspaceService>,
    hello: &Hello,
    way: AttachMode,
    after: Revision,
) -> Result<AttachedPod, Status> {
    let (record, ttl) = hello::read(hello)?;
    let token =
        Some(&hello.resume).filter(|resume| !resume.is_empty()).map(|resume| Token::parse(resume)).transpose()?;
    if let Some(token) = token.as_ref().filter(|token| token.pod != hello.pod) {
        return Err(Status::invalid_argument(format!("`resume` is of pod {}, `pod` is {}", token.pod, hello.pod)));
    }
    let is_elsewhere = |token: &&Token| !token.keyspace.is_empty() && token.keyspace != shared.keyspace;
    if let Some(token) = token.as_ref().filter(is_elsewhere) {
        let (of, keyspace) = (&token.keyspace, &shared.keyspace);
        return Err(Status::invalid_argument(format!("`resume` is of keyspace {of:?}, `keyspace` is {keyspace:?}")));
    }
    // An instance without sight of the store must not renew the lease.
    shared.hub.ensure_sighted(ttl)?;
    let shared = shared.clone();
    // A renewal runs in a task of its own, so that a pod that hangs up does not break it off: the store would give up
    // its connection, which carries all leases and watches of this process.
    let attaching = async move {
        if let Some(token) = token
            && let Some(attached) = go_on(&shared, token, &record, (way, after)).await?
        {
            return Ok(attached);
        }
        register(&shared, record, ttl, way).await
    };
    tokio::spawn(attaching.in_current_span())
        .await
        .unwrap_or_else(|_| Err(Status::internal("the registration failed; ask again")))
}

/// A registration in the store.
#[derive(Debug)]
pub(crate) struct StoredRegistration {
    pub(crate) token: Token,
    /// The revision that last changed the record.
    pub(crate) seen: Revision,
    /// The revision of the store when the record was read.
    read: Revision,
    digest: String,
    /// `None` if another writer has overwritten it.
    record: Option<PodRecord>,
}

/// How a pod takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AttachMode {
    Stream,
    Poll,
}

/// The value of `pod_streams/{pod}`, which has the lease of the registration.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    /// The digest that the record has too. It stays here if another writer overwrites the record.
    resume_digest: String,
    way: AttachMode,
    #[serde(flatten)]
    server: PodStream,
}

impl Mark {
    fn put(shared: &KeyspaceService, pod: &str, digest: &str, way: AttachMode, lease: LeaseId) -> Op {
        let server = PodStream { admin: shared.settings.admin.clone() };
        let mark = Mark { resume_digest: digest.to_owned(), way, server };
        Op::put_leased(shared.keys.pod_stream(pod), encode(&mark), lease)
    }

    /// Returns whether it says that the pod of this registration polls.
    fn is_of_poll(&self, digest: &str) -> bool {
        self.way == AttachMode::Poll && self.resume_digest == digest
    }

    async fn read(shared: &KeyspaceService, pod: &str) -> Result<Option<Self>, Status> {
        let found = shared.store.snapshot(&Keys::One(shared.keys.pod_stream(pod))).await.map_err(unavailable)?;
        Ok(found.entries.first().and_then(|entry| serde_json::from_slice(&entry.value).ok()))
    }
}

/// Tells the pod's stream of an acknowledgement that the store does not record. A stream elsewhere does not learn of it, so
/// the pod has to acknowledge there. A pod that polls has no stream to tell.
pub(crate) async fn tell_stream(
    shared: &KeyspaceService,
    token: &Token,
    partition: PartitionId,
    done: UnrecordedAck,
) -> AckOutcome {
    if shared.sessions.tell(token.incarnation(), partition, done) {
        return AckOutcome::Accepted;
    }
    match Mark::read(shared, &token.pod).await {
        Ok(Some(Mark { way: AttachMode::Poll, .. })) => AckOutcome::Accepted,
        _ => AckOutcome::Again,
    }
}

/// Reads the registration of this token from the store. Returns `None` if it is over.
pub(crate) async fn find(shared: &KeyspaceService, token: Token) -> Result<Option<StoredRegistration>, Status> {
    let found = shared.store.snapshot(&Keys::One(shared.keys.pod(&token.pod))).await.map_err(unavailable)?;
    let Some(entry) = found.entries.first() else { return Ok(None) };
    if Incarnation::registered_at(entry.create_revision) != token.incarnation() {
        return Ok(None);
    }
    let record = serde_json::from_slice::<PodRecord>(&entry.value).ok().filter(|record| record.resume_digest.is_some());
    let digest = match record.as_ref().and_then(|record| record.resume_digest.clone()) {
        Some(digest) => Some(digest),
        None => Mark::read(shared, &token.pod).await?.map(|mark| mark.resume_digest),
    };
    let Some(digest) = digest else {
        return Err(Status::failed_precondition(format!(
            "another writer has overwritten the registration of pod {0}; `segue forget pod {0}` ends it",
            token.pod
        )));
    };
    token.proves(&digest)?;
    Ok(Some(StoredRegistration { token, seen: entry.mod_revision, read: found.revision, digest, record }))
}

/// Goes on with the registration of this token, and then renews its lease: a lease stands for a pod that is told what it has to
/// do. Returns `None` if the registration has ended, and fails if its life is over although it has not.
async fn go_on(
    shared: &Arc<KeyspaceService>,
    token: Token,
    own: &PodRecord,
    (way, after): (AttachMode, Revision),
) -> Result<Option<AttachedPod>, Status> {
    let mut last = shared.sessions.last_poll(&token).filter(|last| way == AttachMode::Poll && last.told == after);
    // Another instance has told the pod the same since.
    if let Some(last) = last.as_mut().filter(|_| token.given_by != shared.instance) {
        last.attendance = Attendance::begin(last.attendance.is_marked);
    }
    let has_moved = last.as_ref().is_some_and(|last| last.attendance.has_moved_here(token.ttl()));
    let attached = match last.filter(|_| !has_moved) {
        Some(last) => served_before(shared, token, last)?,
        None => match resume(shared, token, own, (way, has_moved)).await? {
            Some(attached) => attached,
            None => return Ok(None),
        },
    };
    ensure_goes_on(shared, &attached.token)?;
    match shared.store.keep_alive(attached.lease()).await {
        Ok(()) => Ok(Some(attached)),
        Err(StoreError::LeaseNotFound) => Ok(None),
        Err(error) => Err(unavailable(error)),
    }
}

/// Returns the registration of a pod that knows nothing newer than what this instance has told it.
fn served_before(shared: &Arc<KeyspaceService>, mut token: Token, last: LastPoll) -> Result<AttachedPod, Status> {
    token.proves(last.record.resume_digest.as_deref().unwrap_or_default())?;
    reissue(shared, &mut token);
    let (hold, record) = (RegistrationHold::known(shared, &token), last.record.clone());
    let attendance = last.attendance;
    Ok(AttachedPod { token, resumed: true, seen: last.told, hold, last: Some(last), attendance, record })
}

/// Makes the token that the pod presents the one that it gets. A token of an instance that had one keyspace names no keyspace.
fn reissue(shared: &KeyspaceService, token: &mut Token) {
    token.keyspace.clone_from(&shared.keyspace);
    token.given_by = shared.instance;
}

/// Resumes the registration of this token, and waits until the view is new enough. Returns `None` if it is over.
///
/// Another instance may have told the pod more than this instance's view shows. A view that shows the revision at which the
/// record was read is new enough. For a pod that polls, that is all, unless it `has_moved` here: it may poll several instances in
/// turn. Otherwise a write marks the present and names this instance: a view that shows it is new enough.
async fn resume(
    shared: &Arc<KeyspaceService>,
    token: Token,
    own: &PodRecord,
    (way, has_moved): (AttachMode, bool),
) -> Result<Option<AttachedPod>, Status> {
    let Some(StoredRegistration { mut token, read, digest, record, .. }) = find(shared, token).await? else {
        return Ok(None);
    };
    reissue(shared, &mut token);
    let hold = RegistrationHold::known(shared, &token);
    if way == AttachMode::Poll
        && !has_moved
        && shared.hub.shows_within(read, VIEW_LAG).await
        && let Some(mark) = Mark::read(shared, &token.pod).await?.filter(|mark| mark.is_of_poll(&digest))
    {
        let attendance = Attendance::begin(mark.server.admin == shared.settings.admin);
        let record = record.unwrap_or_else(|| PodRecord { resume_digest: Some(digest), ..own.clone() });
        return Ok(Some(AttachedPod { token, resumed: true, seen: read, hold, last: None, attendance, record }));
    }
    let mark = Txn::guarded(
        [Compare::created_at(shared.keys.pod(&token.pod), token.incarnation().revision())],
        [Mark::put(shared, &token.pod, &digest, way, token.lease())],
    );
    match shared.store.commit(mark).await {
        Ok(outcome) if outcome.committed() => {
            shared.hub.shows(outcome.revision).await?;
            let record = record.unwrap_or_else(|| PodRecord { resume_digest: Some(digest), ..own.clone() });
            Ok(Some(AttachedPod {
                token,
                resumed: true,
                seen: outcome.revision,
                hold,
                last: None,
                attendance: Attendance::begin(true),
                record,
            }))
        }
        Ok(_) | Err(StoreError::LeaseNotFound) => Ok(None),
        Err(error) => Err(unavailable(error)),
    }
}

async fn register(
    shared: &Arc<KeyspaceService>,
    record: PodRecord,
    ttl: Duration,
    way: AttachMode,
) -> Result<AttachedPod, Status> {
    let key = shared.keys.pod(&record.pod_name);
    let taken = || {
        Status::already_exists(format!(
            "pod {} is already registered; retry once the lease of that registration has ended",
            record.pod_name
        ))
    };
    // Checked before the lease is granted, so that a pod that retries does not cost a lease each time.
    if !shared.store.snapshot(&Keys::One(key.clone())).await.map_err(unavailable)?.entries.is_empty() {
        return Err(taken());
    }
    let floor = floor(shared).await?;
    let lease = shared.store.grant(ttl).await.map_err(unavailable)?;
    let secret = Secret::new(lease, ttl, floor);
    let record = PodRecord { resume_digest: Some(secret.digest.clone()), ..timed(record.clone()) };
    let create = Txn::guarded(
        [Compare::created_at(key.clone(), Revision::ZERO)],
        [Op::put_leased(key, encode(&record), lease), Mark::put(shared, &record.pod_name, &secret.digest, way, lease)],
    );
    let created = shared.store.commit(create).await;
    match created {
        Ok(outcome) if outcome.committed() => {
            let incarnation = Incarnation::registered_at(outcome.revision);
            info!(pod = record.pod_name, incarnation = incarnation.get(), "pod registered");
            let mut token = secret.token((&shared.keyspace, &record.pod_name), incarnation);
            reissue(shared, &mut token);
            let hold = RegistrationHold::new(shared, &token);
            let (seen, attendance) = (outcome.revision, Attendance::begin(true));
            Ok(AttachedPod { token, resumed: false, seen, hold, last: None, attendance, record })
        }
        refused => {
            let _ = shared.store.revoke(lease).await;
            Err(refused.map_or_else(unavailable, |_| taken()))
        }
    }
}

/// Returns the floor of epochs under which a life begins now, once it is above what was used before the store went back. If it
/// is raised before the life has begun, that life is the shorter for it.
async fn floor(shared: &KeyspaceService) -> Result<Epoch, Status> {
    while raise_floor(&shared.store, &shared.horizon, &shared.keys).await.map_err(unavailable)? {}
    let config = shared.store.snapshot(&Keys::One(shared.keys.config())).await.map_err(unavailable)?;
    let stored = View::from_snapshot(shared.keys.clone(), config).epoch_floor();
    Ok(stored.max(shared.hub.view().epoch_floor()))
}

fn timed(record: PodRecord) -> PodRecord {
    let now = unix_millis();
    PodRecord { registered_at: now, last_heartbeat: now, ..record }
}
