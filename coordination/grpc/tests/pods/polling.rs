//! A pod that keeps no stream: it polls by turns the instances that it knows, and does each task at once.

use std::net::SocketAddr;
use std::time::Duration;

use segue_grpc::proto::{Event, Heartbeat, Hello, Holding, PollRequest, Progress};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::client::{Known, acknowledge, connect};

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Polling {
    addresses: Vec<SocketAddr>,
    hello: Hello,
    pub(crate) known: Known,
    /// What each Poll reports of the tasks that run.
    pub(crate) progress: Vec<Progress>,
    /// When it sent its last Poll.
    pub(crate) polled: Option<Instant>,
    seq: u64,
    revision: u64,
}

impl Polling {
    pub(crate) fn new(addresses: impl IntoIterator<Item = SocketAddr>, hello: Hello) -> Self {
        let addresses = addresses.into_iter().collect();
        Polling { addresses, hello, known: Known::default(), progress: Vec::new(), polled: None, seq: 0, revision: 0 }
    }

    /// Goes on at these instances alone.
    pub(crate) fn move_to(&mut self, addresses: impl IntoIterator<Item = SocketAddr>) {
        self.addresses = addresses.into_iter().collect();
    }

    /// Drops what it has, as at the end of a life.
    pub(crate) fn forget(&mut self) {
        (self.known, self.revision) = (Known::default(), 0);
    }

    /// Returns the hello of the registration that it has.
    pub(crate) fn resuming(&self) -> Hello {
        let is_known = self.known.welcome.is_some();
        let holdings = self.known.held.iter().map(|(&partition, &epoch)| Holding { partition, epoch }).collect();
        let resume = if is_known { self.known.token() } else { Vec::new() };
        Hello { resume, holdings, ..self.hello.clone() }
    }

    /// Polls once, and does nothing else.
    pub(crate) async fn poll(&mut self, wait: Duration) -> Result<Event, Status> {
        self.seq += 1;
        self.polled = Some(Instant::now());
        let address = self.addresses[self.seq as usize % self.addresses.len()];
        let (hello, progress) = (Some(self.resuming()), self.progress.clone());
        let heartbeat = Some(Heartbeat { seq: self.seq, hello, progress, ..Heartbeat::default() });
        let request = PollRequest { heartbeat, after_revision: self.revision, wait: wait.try_into().ok() };
        let event = connect(address).await.poll(request).await?.into_inner();
        assert!(event.assignment.as_ref().unwrap().full);
        self.known.apply(&event);
        self.revision = event.revision;
        Ok(event)
    }

    /// Polls once and does the tasks that are due. Registers, and again while the name is taken or the pod of a sidecar has
    /// not registered.
    pub(crate) async fn round(&mut self) -> Event {
        self.try_round().await.unwrap()
    }

    /// As [`Polling::round`], and fails once its life has ended.
    async fn try_round(&mut self) -> Result<Event, Status> {
        let begun = Instant::now();
        let event = loop {
            let is_passing = |status: &Status| matches!(status.code(), Code::AlreadyExists | Code::Unavailable);
            match self.poll(Duration::from_millis(100)).await {
                Ok(event) => break event,
                Err(status) if self.known.welcome.is_none() && is_passing(&status) && begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(status) => return Err(status),
            }
        };
        assert_eq!(event.confirmed, self.seq);
        let acks = event.tasks.iter().filter_map(|task| self.known.run(task)).collect();
        acknowledge(self.addresses[0], self.known.token(), acks).await;
        Ok(event)
    }

    pub(crate) async fn until(&mut self, what: &str, holds: impl Fn(&Known) -> bool) {
        self.try_until(what, holds).await.unwrap();
    }

    pub(crate) async fn try_until(&mut self, what: &str, holds: impl Fn(&Known) -> bool) -> Result<(), Status> {
        let begun = Instant::now();
        while !holds(&self.known) {
            assert!(begun.elapsed() < PATIENCE, "not in time: {what}: {:#?}", self.known);
            self.try_round().await?;
        }
        Ok(())
    }

    pub(crate) async fn owns(&mut self, count: usize) {
        self.try_owns(count).await.unwrap();
    }

    /// As [`Polling::owns`], and fails once its life has ended.
    pub(crate) async fn try_owns(&mut self, count: usize) -> Result<(), Status> {
        self.try_until(&format!("it owns {count}"), |known| known.owned.len() == count).await
    }
}
