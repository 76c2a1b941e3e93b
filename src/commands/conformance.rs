//! `segue conformance`: examines a running pod, and prints what does not conform.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use serde::Serialize;

use super::output::{print_json, print_text};
use super::store::StoreArgs;
use super::{CommandFailure, runtime};
use crate::checks::conformance::{HandoffReport, HandoffTest, PodUnderTest, StampReport, play, send_stamps};

/// The pod under test.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// URL of the pod, such as http://10.0.0.7:8181: the address that it registered, not that of a router.
    #[arg(long, value_name = "URL")]
    pod: Uri,
    /// Name of the pod, if --pod is not the address that it registered.
    #[arg(long)]
    name: Option<String>,
    /// Path of the requests, each a GET.
    #[arg(long, default_value = "/")]
    path: String,
    /// Play handoffs, cancels and the loss of the lease with the pod, in a keyspace without a coordinator and routers.
    #[arg(long)]
    handoffs: bool,
    /// With --handoffs: serve the gRPC service for pods here, and play its restart and its silence.
    #[arg(long, value_name = "ADDRESS", requires = "handoffs")]
    listen: Option<SocketAddr>,
    /// With --listen: the file of a token that the pod has to present.
    #[arg(long, value_name = "FILE", requires = "listen")]
    token_file: Option<PathBuf>,
    /// With --handoffs: start the pod by this command of the shell, kill its process with SIGKILL and start it again.
    #[arg(long, value_name = "COMMAND", requires = "handoffs")]
    command: Option<String>,
    /// With --handoffs: how long the pod may take for each step.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = segue_config::parse_duration)]
    patience: Duration,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

pub(super) fn conformance(args: &Args) -> Result<(), CommandFailure> {
    let runtime = runtime()?;
    if args.handoffs {
        let report = runtime.block_on(play_handoffs(args))?;
        return print(&report, report.conforms, args.json);
    }
    let report = runtime.block_on(stamps(args))?;
    print(&report, report.conforms, args.json)
}

fn print<T: Serialize + fmt::Display>(report: &T, conforms: bool, json: bool) -> Result<(), CommandFailure> {
    match json {
        true => print_json(report)?,
        false => print_text(&format!("{}\n", report.to_string().trim_end()))?,
    };
    // The report has already been printed.
    if conforms { Ok(()) } else { Err(CommandFailure::AlreadyReported) }
}

async fn play_handoffs(args: &Args) -> Result<HandoffReport, CommandFailure> {
    let pod = pod(args)?;
    let (store, keys) = args.store.connect().await?;
    let test = HandoffTest {
        listen: args.listen,
        token_file: args.token_file.clone(),
        command: args.command.clone(),
        patience: args.patience,
    };
    Ok(play(store, keys, pod, test).await?)
}

async fn stamps(args: &Args) -> Result<StampReport, CommandFailure> {
    let pod = pod(args)?;
    let (store, keys) = args.store.connect().await?;
    Ok(send_stamps(&*store, &keys, &pod).await?)
}

/// Returns the pod that the arguments name.
fn pod(args: &Args) -> Result<PodUnderTest, CommandFailure> {
    let authority = args.pod.authority().filter(|_| args.pod.scheme_str() == Some("http"));
    let Some(authority) = authority.filter(|authority| authority.port().is_some()) else {
        let text = format!("segue: --pod {}: expected http://HOST:PORT, the address that the pod registered", args.pod);
        return Err(CommandFailure::BadInput(text));
    };
    if !args.path.starts_with('/') {
        return Err(CommandFailure::BadInput(format!(
            "segue: --path {}: expected a path, such as /healthz",
            args.path
        )));
    }
    Ok(PodUnderTest { authority: authority.to_string(), path: args.path.clone(), name: args.name.clone() })
}
