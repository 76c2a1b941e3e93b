//! `segue check`: validates configuration files, each by itself and together, and Kubernetes manifests with them, and
//! measures their stores.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use segue_config::{LocatedConfig, Problem, StoreKind, compare};
use segue_protocol::planning::Assurance;

use super::output::{print_text, remark};
use super::{CommandFailure, bad, load_with_certificates, measure_store};
use crate::checks::kubernetes;
use crate::process::files;
use crate::process::secret_files;
use crate::process::surroundings;
use crate::roles::pod::capabilities;

/// The files.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Configuration files; several are also checked against each other.
    #[arg(value_name = "FILE", required_unless_present_any = ["config", "kubernetes"])]
    files: Vec<PathBuf>,
    /// Configuration files, as an option.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    config: Vec<PathBuf>,
    /// Rendered Kubernetes manifests; /dev/stdin is the output of another program. Grace periods, preStop hooks, probes
    /// and disruption budgets have to fit the configurations in their ConfigMaps. A container whose ConfigMap is not
    /// among them has the configuration of --config.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    kubernetes: Vec<PathBuf>,
    /// Measure the stores of the files as well: how long writes, their events and leases take. Warns of a store that is too
    /// slow for the lease times. Compares mapping, number of partitions and planning settings with those of the keyspaces:
    /// another mapping exits 2, the others are warnings.
    #[arg(long)]
    store: bool,
}

pub(super) fn check(args: &Args) -> Result<(), CommandFailure> {
    let paths = args.files.iter().chain(&args.config);
    let (good, problems): (Vec<_>, Vec<_>) = paths.map(|path| check_alone(path)).partition(Result::is_ok);
    let problems: Vec<String> = problems.into_iter().filter_map(Result::err).map(text).collect::<Result<_, _>>()?;
    if !problems.is_empty() {
        return Err(CommandFailure::BadInput(problems.join("\n")));
    }
    let mut files: Vec<LocatedConfig> = good.into_iter().flatten().collect();
    if !args.kubernetes.is_empty() {
        files = check_manifests(&args.kubernetes, &files)?;
    }
    let found = compare(&files);
    let fences = files.iter().filter_map(without_fence);
    for warning in found.warnings.iter().cloned().chain(fences) {
        remark(format!("warning: {warning}"));
    }
    if !found.problems.is_empty() {
        let lines: Vec<String> = found.problems.iter().map(ToString::to_string).collect();
        return Err(CommandFailure::BadInput(lines.join("\n")));
    }
    // A single file has nothing to be compared with.
    if files.len() > 1 {
        print_text(&format!("{}\n", assurance(&files)?))?;
    }
    if args.store {
        measure_store::measure(&files)?;
    }
    Ok(())
}

/// Returns the configurations of the containers.
fn check_manifests(paths: &[PathBuf], given: &[LocatedConfig]) -> Result<Vec<LocatedConfig>, CommandFailure> {
    let given = match given {
        [] => None,
        [given] => Some(given),
        _ => return Err(CommandFailure::BadInput("segue: --kubernetes takes one configuration file".to_owned())),
    };
    let read = |path: &PathBuf| match std::fs::read_to_string(path) {
        Ok(text) => Ok((path.display().to_string(), text)),
        Err(error) => Err(CommandFailure::BadInput(format!("{}: cannot be read: {error}", path.display()))),
    };
    let found = kubernetes::check(&paths.iter().map(read).collect::<Result<Vec<_>, _>>()?, given);
    for warning in &found.warnings {
        remark(format!("warning: {warning}"));
    }
    if found.problems.is_empty() { Ok(found.configs) } else { Err(CommandFailure::BadInput(found.problems.join("\n"))) }
}

fn check_alone(path: &Path) -> Result<LocatedConfig, CommandFailure> {
    let (located, certificates) = load_with_certificates(path)?;
    let expired = certificates.expired(&located, SystemTime::now());
    if !expired.is_empty() {
        return Err(bad(located, expired));
    }
    let doubts = files::doubt(&located).into_iter().chain(located.unnamed_keyspace());
    let doubts = doubts.chain(located.unwritten_partition()).chain(uncoordinated(&located));
    let doubts = doubts.chain(certificates.expiring(&located, SystemTime::now()));
    for doubt in doubts.chain(secret_files::exposed(&located)).chain(surroundings::lacking(&located)) {
        remark(format!("warning: {doubt}"));
    }
    Ok(located)
}

/// Returns the warning that nobody places partitions, because the store is this process's alone.
fn uncoordinated(file: &LocatedConfig) -> Option<Problem> {
    let config = &file.config;
    let is_alone = config.store.kind == StoreKind::Memory && config.coordinator.is_none();
    is_alone.then(|| {
        let fact = "\"memory\" is a store of this process alone, and the file has no [coordinator]: no partition gets an owner";
        file.problem("store.kind", fact, "expected \"etcd\", or a section [coordinator] in this file")
    })
}

/// Returns the warning that nothing ends the work of this file's service if its sidecar fails.
fn without_fence(file: &LocatedConfig) -> Option<Problem> {
    file.config.pod.as_ref().filter(|pod| !capabilities(pod).fence)?;
    let fact = "without fence: if the sidecar fails, the service may write on beside the next owner of its partitions";
    Some(file.problem("pod", fact, "expected one of pod.exec, pod.hooks.lease, pod.work_ends_within and pod.stream"))
}

/// Returns the text of a failure that is bad input, and any other failure as it is.
fn text(failure: CommandFailure) -> Result<String, CommandFailure> {
    match failure {
        CommandFailure::BadInput(text) => Ok(text),
        other => Err(other),
    }
}

/// Returns the guarantee that the pods of these files allow, in words.
fn assurance(files: &[LocatedConfig]) -> anyhow::Result<String> {
    let pods = files.iter().filter_map(|file| file.config.pod.as_ref());
    Ok(match Assurance::with(pods.map(capabilities)) {
        Some(row) => row.to_string(),
        None => "no file has a section [pod]: the guarantee depends on the capabilities of the pods".to_owned(),
    })
}
