//! How a command reaches the keyspace: by its store, or by an admin endpoint whose process has the store.

use std::time::Duration;

use anyhow::anyhow;
use http::Method;
use segue_config::{Admin, AdminWrite, readable};
use segue_coordination::session::unix_millis;
use segue_coordination::store::StoreError;
use segue_protocol::ids::PartitionId;
use segue_proxy::tls::ClientTls;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use super::progress::shown;
use crate::commands::CommandFailure;
use crate::commands::server::{AdminServer, read_token};
use crate::commands::target::{LOCAL_ENDPOINTS, ReachArgs, Target};
use crate::operator::history::HandoffHistory;
use crate::operator::status::KeyspaceStatus;
use crate::operator::top::{KeyspaceTraffic, MEASURED_FOR, TrafficQuestion};
use crate::operator::{
    Action, ActionOutcome, Condition, Explanation, KeyReport, Link, OperationId, OperatorError, Order, PartitionReport,
    PodReport, Preview, RegistrationKind, RouterComparison, WaitProgress, perform, segment, until,
};

/// How long the first request waits for a condition, and how long any. A longer wait asks again, which also shows the
/// progress. Each request costs a snapshot of the keyspace, so the time doubles.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(16);
/// How long an endpoint may take to compare the tables of routers that differ or are silent.
const LONGEST_COMPARISON: Duration = Duration::from_secs(45);
/// How long an endpoint is asked again that was reached and then gives no answer, and the pause between two attempts.
const LOST_PATIENCE: Duration = Duration::from_secs(10);
const LOST_PAUSE: Duration = Duration::from_millis(500);

/// A way to a keyspace.
#[derive(Debug)]
pub(in crate::commands) enum Reach {
    Store(Box<Link>),
    Server(AdminServer),
}

impl Reach {
    /// Opens the way that the arguments, the variables or this machine offer.
    pub(in crate::commands) async fn open(args: &ReachArgs) -> Result<Self, CommandFailure> {
        let server = match args.target()? {
            Target::Store => {
                let (store, keys) = args.store.connect().await?;
                return Ok(Reach::Store(Box::new(Link::new(store, keys, args.store.policy()?))));
            }
            Target::Server { name, token_file } => {
                AdminServer::at(&name, token_file.as_deref().map(read_token).transpose()?, &args.store)?
            }
            Target::Local => AdminServer::first_of(&LOCAL_ENDPOINTS, &args.store).await?,
        };
        Ok(Reach::Server(server.of_keyspace(args.store.keyspace())))
    }

    /// Opens the way to the sidecar of this host: the one that the arguments, the variables or the configuration file
    /// name, otherwise the usual one.
    pub(super) async fn sidecar(args: &ReachArgs) -> Result<Self, CommandFailure> {
        let server = match args.target()? {
            Target::Server { name, token_file } => {
                AdminServer::at(&name, token_file.as_deref().map(read_token).transpose()?, &args.store)?
            }
            Target::Local => AdminServer::first_of(&LOCAL_ENDPOINTS, &args.store).await?,
            Target::Store => match args.store.config()?.and_then(|config| config.admin) {
                Some(Admin { socket: Some(path), .. }) => {
                    AdminServer::at(&format!("unix:{}", path.display()), None, &args.store)?
                }
                Some(Admin { listen, tls: None, write, .. }) => {
                    let token = if let AdminWrite::Token(file) = &write { Some(read_token(file)?) } else { None };
                    AdminServer::at(&format!("http://{listen}"), token, &args.store)?
                }
                Some(Admin { tls: Some(_), .. }) | None => {
                    let text = "segue: the file names no way to ask its process; expected admin.socket";
                    return Err(CommandFailure::BadInput(text.to_owned()));
                }
            },
        };
        // A sidecar hands over what its pod has in all keyspaces, and refuses the name of one.
        Ok(Reach::Server(server.of_keyspace(args.store.keyspace_option())))
    }

    /// Carries out an order; at most `patience` is waited for the leader's answer.
    pub(super) async fn perform(&self, order: &Order, patience: Duration) -> Result<ActionOutcome, CommandFailure> {
        match self {
            Reach::Store(link) => {
                Ok(shown(async |said: &WaitProgress| perform(link, order, patience, said).await).await?)
            }
            Reach::Server(server) => {
                // A request that gets no answer in time is repeated under its id, and takes effect once.
                let id = order.id.clone().unwrap_or_else(OperationId::random);
                let (method, path, mut body) = request(&order.action)?;
                body.extend([("id".to_owned(), json!(id)), ("who".to_owned(), json!(order.origin.who))]);
                body.insert("why".to_owned(), json!(order.origin.why));
                let body = Value::Object(body);
                let ask = async |wait: Duration| {
                    let path = format!("{path}?wait={}ms", wait.as_millis());
                    server.send(method.clone(), &path, Some(&body), wait).await
                };
                let answer = asked_again(patience, LOST_PATIENCE, ask).await.map_err(|failure| match failure {
                    CommandFailure::Lost(error) => CommandFailure::Lost(error.context(format!(
                        "the order may have been carried out; --id {id} repeats it without a second effect"
                    ))),
                    other => other,
                })?;
                read(server, answer)
            }
        }
    }

    /// Waits until a condition holds.
    pub(super) async fn until(&self, condition: &Condition, timeout: Duration) -> Result<String, CommandFailure> {
        match self {
            Reach::Store(link) => {
                Ok(shown(async |said: &WaitProgress| until(link, condition, timeout, said).await).await?)
            }
            Reach::Server(server) => {
                let path = match condition {
                    Condition::Settled => "/v1/wait/settled?".to_owned(),
                    Condition::Moved { partition, to: None } => format!("/v1/wait/moved/{partition}?"),
                    Condition::Moved { partition, to: Some(to) } => {
                        format!("/v1/wait/moved/{partition}?to={}&", segment(to))
                    }
                    Condition::Drained { pod, by_operator } => {
                        format!("/v1/wait/drained/{}?by_operator={by_operator}&", segment(pod))
                    }
                };
                let ask = async |wait: Duration| server.get(&format!("{path}wait={}ms", wait.as_millis()), wait).await;
                Ok(read::<ActionOutcome>(server, asked_again(timeout, LOST_PATIENCE, ask).await?)?.text)
            }
        }
    }

    /// Has the sidecar hand over what its pod owns. Without `timeout`, does not wait.
    pub(super) async fn drain_itself(&self, timeout: Option<Duration>) -> Result<ActionOutcome, CommandFailure> {
        let Reach::Server(server) = self else {
            return Err(CommandFailure::BadInput("segue: --self asks a sidecar, not a store".to_owned()));
        };
        let ask = async |wait: Duration| {
            server.send(Method::POST, &format!("/drain?wait={}ms", wait.as_millis()), Some(&json!({})), wait).await
        };
        match timeout {
            // A sidecar that is gone has nothing left to give up.
            Some(timeout) => read(server, asked_again(timeout, Duration::ZERO, ask).await?),
            None => match ask(Duration::ZERO).await {
                Err(CommandFailure::Waiting(text)) => Ok(ActionOutcome { text: text.to_string(), facts: Map::new() }),
                other => read(server, other?),
            },
        }
    }

    pub(super) async fn plan(&self, without: Option<&str>) -> Result<Preview, CommandFailure> {
        match self {
            Reach::Store(link) => Ok(link.plan(without).await?),
            Reach::Server(server) => {
                let query = without.map_or(String::new(), |pod| format!("?without={}", segment(pod)));
                read(server, server.get(&format!("/v1/plan{query}"), Duration::ZERO).await?)
            }
        }
    }

    /// Explains a partition, with what the participants say that its handoff waits for. Those are asked by this command
    /// if it has the store, by TLS if `tls` is given, and otherwise by the endpoint's process.
    pub(super) async fn explain_partition(
        &self,
        partition: PartitionId,
        tls: Option<&ClientTls>,
    ) -> Result<PartitionReport, CommandFailure> {
        match self {
            Reach::Store(link) => {
                let mut report = link.explain_partition(partition).await?;
                report.ask(tls).await;
                Ok(report)
            }
            Reach::Server(server) => {
                let path = format!("/v1/partitions/{partition}?ask=true");
                read(server, server.get(&path, Duration::ZERO).await?)
            }
        }
    }

    /// Explains a key and its partition. The participants are asked as those of a partition are.
    pub(super) async fn explain_key(&self, key: &str, tls: Option<&ClientTls>) -> Result<KeyReport, CommandFailure> {
        match self {
            Reach::Store(link) => {
                let mut report = link.explain_key(key).await?;
                report.ask(tls).await;
                Ok(report)
            }
            Reach::Server(server) => {
                let path = format!("/v1/keys?key={}&ask=true", segment(key));
                read(server, server.get(&path, Duration::ZERO).await?)
            }
        }
    }

    /// Compares the tables of all routers with the store. The routers are asked by this command if it has the store, by
    /// TLS if `tls` is given, and otherwise by the endpoint's process.
    pub(in crate::commands) async fn routers(
        &self,
        tls: Option<&ClientTls>,
    ) -> Result<RouterComparison, CommandFailure> {
        match self {
            Reach::Store(link) => Ok(link.compare_routers(tls).await?),
            Reach::Server(server) => read(server, server.get("/v1/routers", LONGEST_COMPARISON).await?),
        }
    }

    /// Measures the traffic of all routers. They are asked as for a comparison.
    pub(super) async fn traffic(&self, keys: bool, tls: Option<&ClientTls>) -> Result<KeyspaceTraffic, CommandFailure> {
        match self {
            Reach::Store(link) => Ok(link.traffic(TrafficQuestion { keys, tls, own: &[] }).await?),
            Reach::Server(server) => read(server, server.get(&format!("/v1/top?keys={keys}"), MEASURED_FOR).await?),
        }
    }

    /// Explains a pod, with what it works on. It is asked as the participants of a partition's handoff are.
    pub(super) async fn explain_pod(&self, pod: &str, tls: Option<&ClientTls>) -> Result<PodReport, CommandFailure> {
        match self {
            Reach::Store(link) => {
                let mut report = link.explain_pod(pod).await?;
                report.ask(tls).await;
                Ok(report)
            }
            Reach::Server(server) => {
                let path = format!("/v1/pods/{}?ask=true", segment(pod));
                read(server, server.get(&path, Duration::ZERO).await?)
            }
        }
    }

    /// Returns at most `limit` handoffs that have ended, the newest first.
    pub(in crate::commands) async fn history(
        &self,
        partition: Option<PartitionId>,
        limit: usize,
    ) -> Result<HandoffHistory, CommandFailure> {
        match self {
            Reach::Store(link) => {
                let history = link.history(partition).await?;
                if let Some(partition) = partition.filter(|_| history.handoffs.is_empty()) {
                    // A partition that does not exist is refused.
                    link.explain_partition(partition).await?;
                }
                Ok(history.newest(limit))
            }
            Reach::Server(server) => {
                let of = partition.map_or(String::new(), |partition| format!("&partition={partition}"));
                read(server, server.get(&format!("/v1/history?limit={limit}{of}"), Duration::ZERO).await?)
            }
        }
    }

    /// Returns the settings of the keyspace by name.
    pub(super) async fn settings(&self) -> Result<Map<String, Value>, CommandFailure> {
        match self {
            Reach::Store(link) => Ok(link.settings().await?),
            Reach::Server(server) => read(server, server.get("/v1/config", Duration::ZERO).await?),
        }
    }

    /// Returns the name of the keyspace, if it is known here.
    pub(super) fn keyspace(&self, args: &ReachArgs) -> Option<String> {
        match self {
            Reach::Store(link) => Some(link.keys().name().to_owned()),
            Reach::Server(_) => args.store.keyspace(),
        }
    }

    /// Returns the status of the keyspace as it is now.
    pub(in crate::commands) async fn status(&self) -> Result<KeyspaceStatus, CommandFailure> {
        match self {
            Reach::Store(link) => {
                let (view, reports, now) = (link.view().await?, link.troubles().await?, unix_millis());
                Ok(KeyspaceStatus::of(&view, now).with_troubles(&reports, &view, now))
            }
            Reach::Server(server) => {
                let mut status = server.get("/status", Duration::ZERO).await?;
                if let Some(Value::Array(names)) = status.get("keyspaces") {
                    let names: Vec<_> = names.iter().filter_map(Value::as_str).collect();
                    let (name, names) = (server.name(), names.join(", "));
                    let text = format!("segue: {name} has several keyspaces; expected --keyspace, one of {names}");
                    return Err(CommandFailure::BadInput(text));
                }
                read(server, status.get_mut("keyspace").map(Value::take).unwrap_or_default())
            }
        }
    }

    /// Returns in which words the store refuses writes, if it does.
    pub(in crate::commands) async fn write_refusal(&self) -> Option<String> {
        match self {
            Reach::Store(link) => link.write_refusal().await,
            Reach::Server(server) => {
                let answer = server.get("/v1/store", Duration::ZERO).await.ok()?;
                answer.get("refuses_writes")?.as_str().map(str::to_owned)
            }
        }
    }

    /// Returns where the settings of the coordinator can be had.
    pub(super) fn where_the_policy_is(&self) -> &'static str {
        match self {
            Reach::Store(_) => "give the coordinator's file with --config to use its settings",
            Reach::Server(_) => "ask a coordinator's admin endpoint to use its settings",
        }
    }
}

/// Asks until the answer is more than that it waits, and shows for what. For `lost_patience` an answer that is lost is
/// asked for again: `ask` repeats a request that has no second effect.
async fn asked_again(
    patience: Duration,
    lost_patience: Duration,
    ask: impl AsyncFn(Duration) -> Result<Value, CommandFailure>,
) -> Result<Value, CommandFailure> {
    let (deadline, mut wait) = (Instant::now() + patience, FIRST_WAIT);
    let (mut is_reached, mut lost_since) = (false, None);
    shown(async |said: &WaitProgress| {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match ask(left.min(wait)).await {
                Err(CommandFailure::Waiting(text)) if left <= wait => {
                    return Err(CommandFailure::Waiting(anyhow!("still waiting after {}: {text}", readable(patience))));
                }
                Err(CommandFailure::Waiting(text)) => {
                    said.send_replace(text.to_string());
                    (is_reached, lost_since) = (true, None);
                    wait = (2 * wait).min(LONGEST_WAIT);
                }
                Err(failure @ (CommandFailure::Lost(_) | CommandFailure::Unreachable(_))) => {
                    is_reached |= matches!(failure, CommandFailure::Lost(_));
                    let since: Instant = *lost_since.get_or_insert_with(Instant::now);
                    if !is_reached {
                        return Err(failure);
                    }
                    if since.elapsed() >= lost_patience {
                        return Err(CommandFailure::Lost(failure.into_error()));
                    }
                    said.send_replace("the endpoint gives no answer; asking again".to_owned());
                    sleep(LOST_PAUSE).await;
                }
                other => return other,
            }
        }
    })
    .await
}

fn read<T: DeserializeOwned>(server: &AdminServer, value: Value) -> Result<T, CommandFailure> {
    let read = serde_json::from_value(value);
    read.map_err(|error| {
        let name = server.name();
        CommandFailure::Work(anyhow!("{name}: {error}: expected the admin endpoint of this version of segue"))
    })
}

/// Returns the request that carries an action out. Its body has the fields of the action that its path does not have.
fn request(action: &Action) -> Result<(Method, String, Map<String, Value>), CommandFailure> {
    let (method, path, in_path): (_, _, &[&str]) = match action {
        Action::Move { .. } => (Method::POST, "/v1/moves".to_owned(), &[]),
        Action::Pin { partition, .. } => (Method::PUT, format!("/v1/partitions/{partition}/pin"), &["partition"]),
        Action::Unpin { partition } => (Method::DELETE, format!("/v1/partitions/{partition}/pin"), &["partition"]),
        Action::Cancel { partition, .. } => (Method::POST, format!("/v1/handoffs/{partition}/cancel"), &["partition"]),
        Action::Drain { pod } => (Method::POST, format!("/v1/pods/{}/drain", segment(pod)), &["pod"]),
        Action::Undrain { pod } => (Method::DELETE, format!("/v1/pods/{}/drain", segment(pod)), &["pod"]),
        Action::Pause { .. } | Action::Resume {} => (Method::POST, "/v1/planner".to_owned(), &[]),
        Action::Want(_) => (Method::PUT, "/v1/wanted".to_owned(), &[]),
        Action::Set { .. } => (Method::PUT, "/v1/config".to_owned(), &[]),
        Action::Remap { .. } => (Method::PUT, "/v1/mapping".to_owned(), &[]),
        Action::Forget { kind: RegistrationKind::Pod, name, .. } => {
            (Method::DELETE, format!("/v1/pods/{}", segment(name)), &["kind", "name"])
        }
        Action::Forget { kind: RegistrationKind::Router, name, .. } => {
            (Method::DELETE, format!("/v1/routers/{}", segment(name)), &["kind", "name"])
        }
    };
    let mut body = action.fields().map_err(anyhow::Error::from)?;
    for field in in_path {
        body.remove(*field);
    }
    match action {
        Action::Pause { .. } => _ = body.insert("paused".to_owned(), json!(true)),
        Action::Resume {} => _ = body.insert("paused".to_owned(), json!(false)),
        _ => {}
    }
    Ok((method, path, body))
}

impl From<OperatorError> for CommandFailure {
    fn from(error: OperatorError) -> Self {
        match error {
            OperatorError::BadInput(text) => CommandFailure::BadInput(format!("segue: {text}")),
            OperatorError::Refused(text) => CommandFailure::Work(anyhow!(text)),
            OperatorError::Waiting { .. } => CommandFailure::Waiting(error.into()),
            OperatorError::Store(StoreError::Unavailable(_)) => CommandFailure::Unreachable(error.into()),
            OperatorError::Store(_) => CommandFailure::Work(error.into()),
        }
    }
}
