//! `segue config`: shows and changes the settings of a keyspace.

use serde_json::Value;

use super::{CommandFailure, CommandTarget, OperationArgs, Reach, act, block_on, print_report};
use crate::operator::Action;

/// What to do with the settings.
#[derive(Debug, clap::Args)]
pub(in crate::commands) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    /// Show all settings of the keyspace, or the value of one.
    ///
    /// Those of planning have the names and values of [coordinator].
    Get {
        /// Name of the setting.
        #[arg(value_name = "KEY")]
        setting: Option<String>,
        #[command(flatten)]
        target: CommandTarget,
    },
    /// Change a setting of the keyspace.
    ///
    /// Settings are `partitions`, which grows only where requests name their partition; `epoch_floor`, which never falls;
    /// `service`, which an empty value removes; and those of planning by their names in [coordinator], such as `settle`.
    Set {
        /// Name of the setting.
        #[arg(value_name = "KEY")]
        setting: String,
        /// Value, as in a configuration file, without quotes.
        value: String,
        #[command(flatten)]
        asked: OperationArgs,
    },
}

pub(in crate::commands) fn config(args: &ConfigArgs) -> Result<(), CommandFailure> {
    match &args.command {
        ConfigCommand::Get { setting, target } => block_on(get(setting.as_deref(), target)),
        ConfigCommand::Set { setting, value, asked } => {
            act(Action::Set { key: setting.clone(), value: value.clone() }, asked)
        }
    }
}

async fn get(key: Option<&str>, target: &CommandTarget) -> Result<(), CommandFailure> {
    let settings = Reach::open(&target.reach).await?.settings().await?;
    let Some(key) = key else {
        print_report(&settings, target.json, |settings| {
            settings.iter().map(|(key, value)| format!("{key} = {}\n", shown(value))).collect()
        })?;
        return Ok(());
    };
    let missing = || CommandFailure::Work(anyhow::anyhow!("the keyspace has no setting {key}"));
    print_report(settings.get(key).ok_or_else(missing)?, target.json, |value| shown(value) + "\n")?;
    Ok(())
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}
