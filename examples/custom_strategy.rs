//! A coordinator with a placement strategy of its own: each pod gets one range of neighbouring partitions, in the order
//! of the pods' names.
//!
//! ```text
//! etcd &
//! cargo run --release --example custom_strategy -- --name c-0
//! ```
//!
//! All coordinators of a keyspace have to know its strategy: under a leader that does not, such as one of `segue run`,
//! partitions stay where they are unless they have to move.

use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use segue_coordination::coordinator::{CoordinatorSettings, CoordinatorStatus, run_coordinator};
use segue_coordination::store::{EtcdOptions, EtcdStore};
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::placement::{Custom, Eligibility, Layout, Placement};
use segue_protocol::planning::{Policy, Strategy};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A coordinator that places ranges of partitions.
#[derive(Debug, Parser)]
struct Arguments {
    /// A client URL of etcd; may be given several times.
    #[arg(long, default_value = "http://127.0.0.1:2379")]
    etcd: Vec<String>,
    /// The keyspace.
    #[arg(long, default_value = "default")]
    keyspace: String,
    /// What the keyspace's keys begin with.
    #[arg(long, default_value = "/segue/")]
    prefix: String,
    /// This coordinator's name, unique in the keyspace.
    #[arg(long)]
    name: String,
    /// Number of partitions.
    #[arg(long, default_value_t = 64)]
    partitions: u32,
}

/// The strategy.
struct Ranges;

impl Placement for Ranges {
    fn place(&self, layout: &Layout<'_>) -> Vec<Option<usize>> {
        let takes = |member: &usize| match layout.members[*member].eligibility {
            Eligibility::Open => true,
            Eligibility::Shunned => layout.has_no_other_choice(),
            Eligibility::Leaving => false,
        };
        let members: Vec<usize> = (0..layout.members.len()).filter(takes).collect();
        let partitions = layout.slots.len();
        (0..partitions).map(|partition| members.get(partition * members.len() / partitions).copied()).collect()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let store = Arc::new(EtcdStore::connect(EtcdOptions::new(arguments.etcd))?);
    let keys = Keyspace::new(&arguments.prefix, &arguments.keyspace);
    let strategy = Strategy::Custom(Custom::new("ranges", &Ranges));
    let settings = CoordinatorSettings {
        name: arguments.name,
        lease_ttl: Duration::from_secs(10),
        policy: Policy { partitions: arguments.partitions, strategy, ..Policy::default() },
    };
    let shutdown = CancellationToken::new();
    let (status, _) = watch::channel(CoordinatorStatus::default());
    let coordinator = tokio::spawn(run_coordinator(store, keys, settings, Arc::new(()), status, shutdown.clone()));
    tokio::signal::ctrl_c().await?;
    shutdown.cancel();
    Ok(coordinator.await?)
}
