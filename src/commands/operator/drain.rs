//! `segue drain` and `segue undrain`: an operator wants a pod empty, in this life and in later ones.

use segue_protocol::ids::Revision;
use segue_protocol::records::{Drain, encode};
use segue_protocol::view::View;
use serde_json::json;

use super::standing::{drained, owned};
use super::wait::{Patience, until};
use super::{Failure, Link, Target, Why, block_on, changed, or_none, partitions, refused};

/// The pod to drain.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct DrainArgs {
    /// Name of the pod.
    pod: String,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    target: Target,
}

/// The pod whose drain ends.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct UndrainArgs {
    /// Name of the pod.
    pod: String,
    #[command(flatten)]
    target: Target,
}

pub(in crate::commands) fn drain(args: &DrainArgs) -> Result<(), Failure> {
    block_on(async {
        let (link, pod) = (Link::open(&args.target).await?, args.pod.as_str());
        let view = link.view().await?;
        known(&view, pod)?;
        match view.intentions.drains.get(pod) {
            Some(drain) => eprintln!("pod {pod} is drained already, by {}", drain.value.origin),
            None => {
                let key = link.keys.drain(pod);
                let drain = Drain { origin: args.why.origin() };
                if !link.put(key.clone(), Revision::ZERO, encode(&drain)).await? {
                    return Err(changed(&key));
                }
            }
        }
        let text = if args.patience.no_wait {
            let left = partitions(owned(&view, pod));
            format!("pod {pod} gives up its partitions ({left}) and gets no more until segue undrain {pod}")
        } else {
            let empty = until(&link, args.patience.timeout, |view| drained(view, pod, true)).await?;
            format!("{empty}, and gets no partition until segue undrain {pod}")
        };
        link.print(json!({ "pod": pod, "waited": !args.patience.no_wait }), &text)
    })
}

pub(in crate::commands) fn undrain(args: &UndrainArgs) -> Result<(), Failure> {
    block_on(async {
        let (link, pod) = (Link::open(&args.target).await?, args.pod.as_str());
        let view = link.view().await?;
        let Some(drain) = view.intentions.drains.get(pod) else {
            known(&view, pod)?;
            return link.print(json!({ "pod": pod, "undrained": false }), &format!("pod {pod} was not drained"));
        };
        let key = link.keys.drain(pod);
        if !link.delete(key.clone(), drain.mod_revision).await? {
            return Err(changed(&key));
        }
        let text = match view.leaves_by_itself(pod) {
            true => format!("the drain of pod {pod} has ended, but the pod itself gives up its partitions"),
            false => format!("pod {pod} may be given partitions again"),
        };
        link.print(json!({ "pod": pod, "undrained": true }), &text)
    })
}

/// Refuses a pod that is not registered and owns no partition, because its name is probably a mistake.
pub(super) fn known(view: &View, pod: &str) -> Result<(), Failure> {
    let is_known = view.pod_key(pod).is_some() || owned(view, pod) > 0 || view.intentions.drains.contains_key(pod);
    if is_known {
        return Ok(());
    }
    let pods: Vec<&str> = view.pods.keys().map(String::as_str).collect();
    let pods = pods.join(", ");
    Err(refused(format!("no pod {pod} is registered or owns a partition; registered are: {}", or_none(&pods))))
}
