//! The token that etcd gives a user for the password: one for the process, renewed when etcd refuses it.
//!
//! etcd takes some 0.1 s of a core to check a password (bcrypt), also when nobody waits for the result any more. Processes that
//! give up early and ask again would keep each other from ever getting a token. A token is therefore used on each connection
//! for as long as etcd accepts it, one authentication at a time is under way, and it outlives the calls that wait for it.
//!
//! # Invariants
//!
//! * The password's file is read for each authentication. If it cannot be read, or etcd refuses what it contains, the last
//!   good password is used.
//! * A password that was refused is tried again only after a pause, which grows.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use etcd_client::{AuthClient, BalancedChannelBuilder, Channel};
use http::{HeaderValue, Uri};
use segue_protocol::back_off::BackOff;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinError;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Endpoint;
use tonic::transport::channel::Change;
use tower::ServiceExt as _;
use tower::util::BoxCloneSyncService;

use super::super::{StoreError, StoreFailure};
use super::failure::EtcdFailure;
use crate::jitter;

/// How long etcd may take to check a password. Some 300 processes per core of etcd can ask at the same time. A member that
/// hangs is noticed earlier, by pings.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The pauses after an authentication that etcd has refused or not completed, each shortened at random by up to a half.
const PAUSES: BackOff = BackOff { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

/// etcd's words while everybody may do everything.
const NO_USERS: &str = "authentication is not enabled";

/// The user, for an etcd with authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdCredentials {
    /// The user's name.
    pub username: String,
    /// The file with the password. White space at its end does not count.
    pub password_file: PathBuf,
}

impl EtcdCredentials {
    fn password(&self) -> Result<String, StoreFailure> {
        let text = std::fs::read_to_string(&self.password_file);
        let text = text.map_err(|error| StoreFailure::unreadable(&self.password_file, error))?;
        Ok(text.trim_end().to_owned())
    }
}

/// The token that requests carry; none without a user, and until etcd asks for one.
#[derive(Debug, Clone, Default)]
pub(super) struct CurrentToken(Arc<RwLock<Option<HeaderValue>>>);

impl CurrentToken {
    pub(super) fn get(&self) -> Option<HeaderValue> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, token: Option<HeaderValue>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = token;
    }
}

/// Builds channels whose requests carry the token. etcd-client's own token belongs to one connection and costs an
/// authentication for each.
impl BalancedChannelBuilder for CurrentToken {
    type Error = tonic::transport::Error;

    fn balanced_channel(self, buffered: usize) -> Result<(Channel, mpsc::Sender<Change<Uri, Endpoint>>), Self::Error> {
        let (channel, endpoints) = tonic::transport::Channel::balance_channel(buffered);
        let with_token = move |mut request: http::Request<tonic::body::Body>| {
            // etcd would refuse an authentication for a void token, too.
            let needs_none = request.uri().path().ends_with("/Authenticate");
            if let Some(token) = self.get().filter(|_| !needs_none) {
                request.headers_mut().insert("token", token);
            }
            request
        };
        let channel = channel.map_request(with_token).map_err(tower::BoxError::from);
        Ok((Channel::Custom(BoxCloneSyncService::new(channel)), endpoints))
    }
}

/// Gets tokens.
pub(super) struct Authenticator {
    credentials: EtcdCredentials,
    held: CurrentToken,
    state: Mutex<TokenState>,
}

#[derive(Default)]
struct TokenState {
    running: Option<AbortOnDropHandle<Result<Option<GrantedToken>, EtcdFailure>>>,
    passwords: Passwords,
}

/// A successful authentication.
struct GrantedToken {
    token: HeaderValue,
    password: String,
    cluster: Option<u64>,
}

impl Authenticator {
    pub(super) fn new(credentials: EtcdCredentials, held: CurrentToken) -> Self {
        Authenticator { credentials, held, state: Mutex::default() }
    }

    /// Replaces the token `refused`, unless another call has done so; by none if etcd has no users. Returns the id of the
    /// cluster that has given the new one. A caller that gives up leaves the authentication to the next one.
    pub(super) async fn renew(
        &self,
        auth: AuthClient,
        refused: Option<&HeaderValue>,
    ) -> Result<Option<u64>, EtcdFailure> {
        let mut state = self.state.lock().await;
        if self.held.get().as_ref() != refused {
            return Ok(None);
        }
        let TokenState { running, passwords } = &mut *state;
        if running.is_none() {
            let passwords = passwords.candidates(self.credentials.password(), Instant::now())?;
            let authentication = authenticate(auth, self.credentials.clone(), passwords);
            *running = Some(AbortOnDropHandle::new(tokio::spawn(authentication)));
        }
        let result = match running {
            Some(running) => {
                let ended = |error: JoinError| StoreFailure::caused_by(error.to_string(), error);
                running.await.unwrap_or_else(|error| Err(EtcdFailure::Broken(ended(error))))
            }
            None => return Ok(None),
        };
        *running = None;
        match result {
            Ok(Some(GrantedToken { token, password, cluster })) => {
                passwords.accept(password);
                self.held.set(Some(token));
                Ok(cluster)
            }
            Ok(None) => {
                self.held.set(None);
                Ok(None)
            }
            Err(failure) => {
                passwords.fail(&failure, Instant::now());
                Err(failure)
            }
        }
    }
}

/// Tries these passwords in turn. Returns no token if etcd has no users: before 3.5 it refuses tokens all the same.
async fn authenticate(
    mut auth: AuthClient,
    credentials: EtcdCredentials,
    passwords: Vec<String>,
) -> Result<Option<GrantedToken>, EtcdFailure> {
    let EtcdCredentials { username, password_file } = credentials;
    let mut refused = StoreFailure::from("there is no password");
    for password in passwords {
        let response = match timeout(TIMEOUT, auth.authenticate(username.clone(), password.clone())).await {
            Ok(response) => response.map_err(EtcdFailure::of),
            Err(_) => {
                let text = format!("no response to the authentication within {TIMEOUT:?}");
                Err(EtcdFailure::Answered(StoreError::Unavailable(text.into())))
            }
        };
        match response {
            Ok(response) => {
                let mut token = HeaderValue::from_str(response.token())
                    .map_err(|_| EtcdFailure::Broken("etcd has given an unusable token".into()))?;
                token.set_sensitive(true);
                let cluster = response.header().map(etcd_client::ResponseHeader::cluster_id);
                return Ok(Some(GrantedToken { token, password, cluster }));
            }
            Err(EtcdFailure::Answered(StoreError::Refused(failure))) if failure.words().contains(NO_USERS) => {
                return Ok(None);
            }
            Err(EtcdFailure::Answered(StoreError::Refused(failure)) | EtcdFailure::Unauthenticated(failure)) => {
                refused = failure;
            }
            Err(other) => return Err(other),
        }
    }
    let file = password_file.display();
    let refused = refused.reworded(|refused| format!("{refused} (user {username}, password in {file})"));
    Err(EtcdFailure::Answered(StoreError::Refused(refused)))
}

/// The passwords that were tried, and with what success. Pure but for its log.
#[derive(Default)]
struct Passwords {
    good: Option<String>,
    tried: Vec<String>,
    failures: u32,
    /// When to try the same passwords again, and why not earlier.
    pause: Option<(Instant, StoreError)>,
}

impl Passwords {
    /// Returns what to try, given what the file contains: that, and the last good one.
    fn candidates(&mut self, read: Result<String, StoreFailure>, now: Instant) -> Result<Vec<String>, EtcdFailure> {
        let (read, unreadable) = match read {
            Ok(password) => (Some(password), None),
            Err(failure) => (None, Some(failure)),
        };
        let mut passwords: Vec<String> = read.into_iter().chain(self.good.clone()).collect();
        passwords.dedup();
        if passwords.is_empty() {
            return Err(EtcdFailure::Answered(StoreError::Refused(unreadable.unwrap_or_else(|| "".into()))));
        }
        match &self.pause {
            Some((until, error)) if now < *until && passwords == self.tried => {
                return Err(EtcdFailure::Answered(error.clone()));
            }
            // A new password is no reason to wait as long as for the old one.
            Some(_) if passwords != self.tried => self.failures = 0,
            _ => {}
        }
        if let Some(error) = unreadable {
            tracing::warn!(error = error.words(), "etcd password cannot be read; keeping the previous one");
        }
        self.tried.clone_from(&passwords);
        Ok(passwords)
    }

    fn accept(&mut self, password: String) {
        if self.pause.take().is_some() {
            tracing::info!("etcd accepts this process's user again");
        }
        self.failures = 0;
        self.good = Some(password);
    }

    /// A connection that has failed costs etcd nothing, so no pause follows.
    fn fail(&mut self, failure: &EtcdFailure, now: Instant) {
        let EtcdFailure::Answered(error) = failure else { return };
        if self.pause.is_none() {
            tracing::error!(%error, "etcd does not accept this process's user; the password's file will be read again");
        }
        self.failures = self.failures.saturating_add(1);
        let pause = jitter::shortened(PAUSES.after(self.failures));
        self.pause = Some((now + pause, error.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(password: &str) -> Result<String, StoreFailure> {
        Ok(password.to_owned())
    }

    fn refused() -> EtcdFailure {
        EtcdFailure::Answered(StoreError::Refused("authentication failed".into()))
    }

    #[test]
    fn the_last_good_password_is_tried_after_the_files() {
        let (mut passwords, now) = (Passwords::default(), Instant::now());
        assert!(passwords.candidates(Err("no file".into()), now).is_err());
        assert_eq!(passwords.candidates(read("old"), now).unwrap(), ["old"]);
        passwords.accept("old".to_owned());
        assert_eq!(passwords.candidates(read("old"), now).unwrap(), ["old"]);
        assert_eq!(passwords.candidates(read("new"), now).unwrap(), ["new", "old"]);
        assert_eq!(passwords.candidates(Err("no file".into()), now).unwrap(), ["old"]);
    }

    #[test]
    fn a_refused_password_waits_longer_each_time_and_a_new_one_not_at_all() {
        let (mut passwords, mut now) = (Passwords::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(passwords.candidates(read("old"), now).is_ok());
            passwords.fail(&refused(), now);
            let begun = now;
            while let Err(failure) = passwords.candidates(read("old"), now) {
                assert!(matches!(failure, EtcdFailure::Answered(StoreError::Refused(_))), "{failure:?}");
                now += Duration::from_millis(50);
            }
            pauses.push((now - begun).as_millis());
        }
        assert!((500..=1050).contains(&pauses[0]) && (15_000..=30_050).contains(&pauses[7]), "{pauses:?}");
        passwords.fail(&refused(), now);
        assert!(passwords.candidates(read("old"), now).is_err());
        assert_eq!(passwords.candidates(read("new"), now).unwrap(), ["new"]);
    }

    #[test]
    fn a_connection_that_fails_needs_no_pause() {
        let (mut passwords, now) = (Passwords::default(), Instant::now());
        passwords.fail(&EtcdFailure::NotSent("connection refused".into()), now);
        passwords.fail(&EtcdFailure::Broken("connection reset".into()), now);
        assert!(passwords.candidates(read("old"), now).is_ok());
    }
}
