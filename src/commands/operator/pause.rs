//! `segue pause` and `segue resume`: stop and resume planned moves.

use std::time::Duration;

use segue_coordination::session::unix_millis;
use segue_protocol::ids::Revision;
use segue_protocol::records::{Pause, encode};
use segue_protocol::txn::{Compare, Op, Txn};
use serde_json::json;

use super::{Failure, Link, Target, Why, block_on, changed, partitions, refused, unreachable};

/// How long, and why.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct PauseArgs {
    /// How long the pause lasts; without it, until `segue resume`.
    #[arg(long = "for", value_name = "TIME", value_parser = segue_config::parse_duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    target: Target,
}

/// The keyspace.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct ResumeArgs {
    #[command(flatten)]
    target: Target,
}

pub(in crate::commands) fn pause(args: &PauseArgs) -> Result<(), Failure> {
    block_on(async {
        let link = Link::open(&args.target).await?;
        let view = link.view().await?;
        if view.settings().is_none() && view.leader.is_none() {
            let root = link.keys.root();
            return Err(refused(format!("no keyspace has been at {root} in this store yet: is its name right?")));
        }
        let key = link.keys.pause();
        let seen = view.intentions.pause.as_ref().map_or(Revision::ZERO, |pause| pause.mod_revision);
        // The lease is never renewed, so the store ends the pause and no clocks are compared.
        let lease = match args.duration {
            Some(duration) => Some(link.store.grant(duration).await.map_err(unreachable)?),
            None => None,
        };
        let until = args.duration.map(|duration| unix_millis() + duration.as_millis() as u64);
        let value = encode(&Pause { origin: args.why.origin(), until });
        let when = vec![Compare::unchanged_since(&key, seen)];
        if !link.commit(Txn { when, then: vec![Op::Put { key: key.clone(), value, lease }], otherwise: None }).await? {
            return Err(changed(&key));
        }
        let end = args.duration.map_or("until segue resume".to_owned(), |duration| format!("for {}", span(duration)));
        let moving = match view.handoffs.len() {
            0 => String::new(),
            moving => format!(" {} on the move: their moves go on.", partitions(moving)),
        };
        let text = format!(
            "planned moves are paused {end}.{moving} Partitions without a living owner, and those of pods that shut down, \
             still move."
        );
        link.print(json!({ "paused": true, "until": until }), &text)
    })
}

/// Formats a duration as command-line options take it.
fn span(duration: Duration) -> String {
    match duration.as_secs() {
        _ if duration.subsec_nanos() > 0 => format!("{duration:?}"),
        seconds if seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        seconds if seconds % 60 == 0 => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

pub(in crate::commands) fn resume(args: &ResumeArgs) -> Result<(), Failure> {
    block_on(async {
        let link = Link::open(&args.target).await?;
        let view = link.view().await?;
        let Some(pause) = view.intentions.pause else {
            return link.print(json!({ "paused": false }), "planned moves were not paused");
        };
        let key = link.keys.pause();
        if !link.delete(key.clone(), pause.mod_revision).await? {
            return Err(changed(&key));
        }
        let text = format!("planned moves go on; they were paused by {}", pause.value.origin);
        link.print(json!({ "paused": false }), &text)
    })
}
