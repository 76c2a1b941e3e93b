//! What `--help` and the manual pages say of each command beside its options: examples and exit codes, and the group in which
//! `segue --help` lists it.
//!
//! # Invariants
//!
//! * Each visible command has a guide, each stands in one group, and each example is accepted by the command line.

use std::fmt::Write as _;

/// The commands in groups.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Processes", &["dev", "run", "restart", "demo"]),
    ("State of a keyspace", &["status", "top", "explain", "plan", "history", "wait"]),
    (
        "Changes of a keyspace",
        &[
            "move", "pin", "unpin", "cancel", "drain", "undrain", "pause", "resume", "forget", "config", "remap",
            "wanted", "keyspace",
        ],
    ),
    ("Checks", &["check", "conformance", "bench"]),
    ("Shells", &["completions", "man", "help"]),
];

/// Examples and exit codes of a command.
#[derive(Debug)]
pub(super) struct CommandGuide {
    /// The names of the command and of its parents, without `segue`.
    path: &'static str,
    /// Command lines, and what they do.
    pub(super) examples: &'static [(&'static str, &'static str)],
    /// The meaning of 0 and of 1.
    ends: [&'static str; 2],
    /// Whether it needs the store, or an admin endpoint.
    reaches: bool,
    /// Whether it waits for a condition.
    waits: bool,
}

impl CommandGuide {
    const fn of(
        path: &'static str,
        ends: [&'static str; 2],
        examples: &'static [(&'static str, &'static str)],
    ) -> Self {
        CommandGuide { path, examples, ends, reaches: false, waits: false }
    }

    const fn reaching(self) -> Self {
        CommandGuide { reaches: true, ..self }
    }

    const fn waiting(self) -> Self {
        CommandGuide { reaches: true, waits: true, ..self }
    }

    /// Returns the exit codes, each with its meaning.
    pub(super) fn exit_codes(&self) -> Vec<(&'static str, &'static str)> {
        let [done, failed] = self.ends;
        let mut codes = vec![("0", done), ("1", failed), ("2", "bad usage, or mistakes in a configuration file")];
        codes.retain(|(_, meaning)| !meaning.is_empty());
        if self.reaches {
            codes.push(("3", "the store or the admin endpoint is unreachable, or its process has lost the store"));
        }
        if self.waits {
            codes.push(("4", "still waiting after --timeout; what was asked for stays in the store"));
        }
        if self.path == "run" {
            codes.push(("other", "the exit code of the service (pod.exec)"));
        }
        codes
    }

    fn in_words(&self) -> String {
        let mut text = "Examples:\n".to_owned();
        for (example, effect) in self.examples {
            let _ = write!(text, "  {example}\n      {effect}\n");
        }
        text += "\nExit codes:\n";
        for (code, meaning) in self.exit_codes() {
            let _ = writeln!(text, "  {code}  {meaning}");
        }
        text.truncate(text.trim_end().len());
        text
    }
}

const PRINTED: [&str; 2] = ["it was printed", "refused, such as for a partition that does not exist"];
const CHANGED: [&str; 2] = ["done", "refused, or ended by somebody else"];

const GUIDES: &[CommandGuide] = &[
    CommandGuide::of(
        "run",
        ["ended gracefully, or replaced in a hot restart", "could not start or take over, or a second signal"],
        &[
            ("segue run --config router.toml", "Run the roles of the file until SIGTERM."),
            ("SEGUE__LOG__LEVEL=debug segue run --config router.toml", "Override a key of the file by a variable."),
        ],
    ),
    CommandGuide::of(
        "dev",
        ["ended by Ctrl-C or SIGTERM", "no copy has come up, an address is in use, or a second signal"],
        &[
            ("segue dev -- python3 -m http.server {port}", "Three file servers; the key is the first part of a path."),
            ("segue dev --pods 5 --key header:x-user -- ./service", "The service reads its port from PORT."),
            ("segue dev --listen 127.0.0.1:8888 --admin 127.0.0.1:9999 -- ./service {port}", "Other addresses."),
        ],
    ),
    CommandGuide::of(
        "restart",
        ["the new process serves", "the new process did not become ready; the running one keeps serving"],
        &[("segue restart --config router.toml", "Start a new process that takes the sockets over.")],
    ),
    CommandGuide::of(
        "demo",
        ["every invariant held", "an invariant was violated, or no request succeeded"],
        &[
            ("segue demo", "Play all scenarios for 20 s."),
            ("segue demo --scenario crash --pods 5 --seed 7", "Crash pods, by the choices of seed 7."),
            ("segue demo --admin 127.0.0.1:9090 --hold", "Show it on the live page, also after its end."),
        ],
    ),
    CommandGuide::of(
        "check",
        ["no mistakes", "a store could not be measured"],
        &[
            ("segue check router.toml", "Check one file."),
            ("segue check router.toml coordinator.toml pod.toml", "Check files against each other."),
            ("segue check --store router.toml", "Measure the store, and compare the file with the keyspace."),
            ("kubectl kustomize deploy/kubernetes | segue check --kubernetes /dev/stdin", "Check rendered manifests."),
        ],
    )
    .reaching(),
    CommandGuide::of(
        "status",
        ["it was printed; with --routers: all routers agree", "with --routers: a router differs or is silent"],
        &[
            ("segue status", "Ask the process of this machine, or the one that SEGUE_SERVER names."),
            ("segue status --server http://10.0.0.7:9090 --watch", "Follow the keyspace."),
            ("segue status --config router.toml --routers", "Compare every router's table with the store."),
        ],
    )
    .reaching(),
    CommandGuide::of(
        "explain",
        PRINTED,
        &[
            ("segue explain 7", "Tell why partition 7 is where it is, and what its handoff waits for."),
            ("segue explain writer-1", "Tell what pod writer-1 has, gets, gives up and works on."),
            ("segue explain --key 4711", "Tell which partition and pod the key 4711 belongs to."),
        ],
    )
    .reaching(),
    CommandGuide::of(
        "top",
        ["it was printed, and every router responded", "a router is silent"],
        &[
            ("segue top", "Follow the pods: requests, errors and latency, from all routers."),
            ("segue top --partitions --once", "Show the busiest partitions."),
            ("segue top --keys --json", "Print the most frequent keys, a line of JSON for each measurement."),
        ],
    )
    .reaching(),
    CommandGuide::of(
        "plan",
        PRINTED,
        &[
            ("segue plan", "Show the moves that are due."),
            ("segue plan --without writer-1", "Show what a drain of writer-1 would move."),
        ],
    )
    .reaching(),
    CommandGuide::of(
        "history",
        PRINTED,
        &[
            ("segue history", "List the last 50 handoffs."),
            ("segue history 7 --limit 3 --json", "Print the last three of partition 7 as JSON."),
        ],
    )
    .reaching(),
    CommandGuide::of(
        "wait",
        ["the condition holds", "it cannot hold any more"],
        &[
            ("segue wait settled --timeout 2m", "Wait until nothing moves."),
            ("segue wait drained writer-1", "Wait until writer-1 is empty."),
        ],
    )
    .waiting(),
    CommandGuide::of(
        "wait settled",
        ["the keyspace is at rest", "it cannot be any more"],
        &[("segue wait settled --timeout 2m", "Wait until nothing moves.")],
    )
    .waiting(),
    CommandGuide::of(
        "wait moved",
        ["the partition is where it belongs", "it cannot be any more"],
        &[("segue wait moved 7", "Wait until partition 7 has a living owner and does not move.")],
    )
    .waiting(),
    CommandGuide::of(
        "wait drained",
        ["the pod is empty", "it cannot be any more"],
        &[("segue wait drained writer-1", "Wait until writer-1 is empty.")],
    )
    .waiting(),
    CommandGuide::of(
        "move",
        ["the partition is there", "refused or cancelled"],
        &[
            ("segue move 4 --to writer-2 --why hot", "Move partition 4, until writer-2 is gone."),
            ("segue move 4 --to writer-2 --pin --no-wait", "Move it for good, and do not wait for it."),
        ],
    )
    .waiting(),
    CommandGuide::of("pin", CHANGED, &[("segue pin 3 --why \"near its data\"", "Keep partition 3 where it is.")])
        .waiting(),
    CommandGuide::of("unpin", CHANGED, &[("segue unpin 3", "Let the strategy place partition 3.")]).reaching(),
    CommandGuide::of(
        "cancel",
        ["the partition stays with its old owner", "refused: no handoff is in flight, or it is too late"],
        &[("segue cancel 5 --why \"router r-1 hangs\"", "Keep partition 5 with its old owner.")],
    )
    .waiting(),
    CommandGuide::of(
        "drain",
        ["the pod is empty", "refused, or ended by somebody else"],
        &[
            ("segue drain writer-1 --why \"kernel update\"", "Empty writer-1, until segue undrain."),
            ("segue drain --self --wait 50s", "Empty the pod of this host's sidecar: a preStop hook."),
        ],
    )
    .waiting(),
    CommandGuide::of("undrain", CHANGED, &[("segue undrain writer-1", "Give writer-1 partitions again.")]).reaching(),
    CommandGuide::of(
        "pause",
        CHANGED,
        &[("segue pause --for 1h --why \"incident 4711\"", "Begin no planned move for an hour.")],
    )
    .reaching(),
    CommandGuide::of("resume", CHANGED, &[("segue resume", "Let planned moves begin again.")]).reaching(),
    CommandGuide::of(
        "forget",
        ["the registration was deleted", "refused, or --yes was missing"],
        &[
            ("segue forget router r-9", "Show what forgetting router r-9 would mean."),
            ("segue forget router r-9 --yes --why \"its machine is gone\"", "Delete its registration."),
        ],
    )
    .reaching(),
    CommandGuide::of(
        "config",
        CHANGED,
        &[("segue config get", "Show all settings of the keyspace."), ("segue config set settle 2s", "Change one.")],
    )
    .reaching(),
    CommandGuide::of(
        "config get",
        ["it was printed", "there is no such setting"],
        &[("segue config get settle", "Show one setting.")],
    )
    .reaching(),
    CommandGuide::of(
        "config set",
        ["the setting has the value", "refused"],
        &[("segue config set settle 2s --why \"slow rollouts\"", "Change one setting.")],
    )
    .reaching(),
    CommandGuide::of(
        "keyspace",
        CHANGED,
        &[
            ("segue keyspace list", "Show the list."),
            ("segue keyspace add orders.toml", "Add the tables of a file to it."),
        ],
    )
    .reaching(),
    CommandGuide::of(
        "keyspace list",
        ["it was printed", "the store refused"],
        &[("segue keyspace list --etcd http://127.0.0.1:2379", "Show what processes follow.")],
    )
    .reaching(),
    CommandGuide::of(
        "keyspace add",
        ["they are in the list", "one of them was already, or the store refused"],
        &[("segue keyspace add orders.toml --config router.toml", "Add the tables [[keyspaces]] of a file.")],
    )
    .reaching(),
    CommandGuide::of(
        "keyspace remove",
        ["it is out of the list", "it was not in it, or --yes was missing"],
        &[("segue keyspace remove orders --yes --config router.toml", "End the part of all processes in it.")],
    )
    .reaching(),
    CommandGuide::of(
        "remap",
        ["the mapping was replaced", "refused, or --yes was missing"],
        &[
            ("segue remap --to new-router.toml", "Show both mappings, and how many partitions have an owner."),
            ("segue remap --to new-router.toml --yes", "Replace the mapping."),
        ],
    )
    .reaching(),
    CommandGuide::of(
        "wanted",
        ["the owners are stored, or already were", "refused: a later generation is stored"],
        &[("segue wanted wanted.json", "Write the owners in the file.")],
    )
    .reaching(),
    CommandGuide::of(
        "conformance",
        ["the pod conforms", "it does not, or could not be tested"],
        &[("segue conformance --config pod.toml --pod http://10.0.0.8:8181 --path /keys/a", "Test a running pod.")],
    )
    .reaching(),
    CommandGuide::of(
        "bench",
        ["nothing was lost, doubled, misrouted or reordered", "an invariant was violated, or no request succeeded"],
        &[("segue bench http://10.0.0.4:8080 --partitions 16 --duration 5s", "Load a router for five seconds.")],
    ),
    CommandGuide::of(
        "completions",
        ["they were printed", ""],
        &[
            ("segue completions bash > /etc/bash_completion.d/segue", "For all users of bash."),
            ("segue completions zsh > /usr/local/share/zsh/site-functions/_segue", "For all users of zsh."),
            ("segue completions fish > ~/.config/fish/completions/segue.fish", "For a user of fish."),
        ],
    ),
    CommandGuide::of(
        "man",
        ["they were written", "a file cannot be written"],
        &[("segue man /usr/local/share/man", "Write segue(1), segue-run(1), segue.toml(5) and the others.")],
    ),
];

/// Returns the guide of a command that has been built.
pub(super) fn of(command: &clap::Command) -> Option<&'static CommandGuide> {
    let name = command.get_display_name()?.strip_prefix("segue-")?;
    GUIDES.iter().find(|guide| guide.path.replace(' ', "-") == name)
}

/// Puts examples and exit codes under the long help of each command.
pub(super) fn with_guides(command: clap::Command) -> clap::Command {
    GUIDES.iter().fold(command, |command, guide| {
        let names: Vec<&str> = guide.path.split(' ').collect();
        with_guide(command, &names, guide)
    })
}

fn with_guide(command: clap::Command, names: &[&str], guide: &CommandGuide) -> clap::Command {
    match names {
        [] => command.after_long_help(guide.in_words()),
        [name, rest @ ..] => command.mut_subcommand(name, |sub| with_guide(sub, rest, guide)),
    }
}

/// Lists the commands in groups.
pub(super) fn grouped(command: clap::Command) -> clap::Command {
    let header = *command.get_styles().get_header();
    let heading = |title: &str| format!("{header}{title}:{header:#}\n");
    let about = |name: &&str| match command.find_subcommand(name).and_then(clap::Command::get_about) {
        Some(about) => about.to_string(),
        None => "Print this message or the help of a command".to_owned(),
    };
    let mut text = String::new();
    for (title, names) in GROUPS {
        text += &heading(title);
        for name in names {
            let _ = writeln!(text, "  {name:12} {}", about(name));
        }
        text += "\n";
    }
    let options = heading("Options");
    let template =
        format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{text}{options}{{options}}{{after-help}}");
    command.help_template(template)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::commands::{Cli, command_line};

    fn visible(command: &clap::Command, above: &str, into: &mut BTreeSet<String>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let path = format!("{above}{}", sub.get_name());
            visible(sub, &format!("{path} "), into);
            into.insert(path);
        }
    }

    #[test]
    fn every_command_has_examples_and_exit_codes_and_stands_in_one_group() {
        let mut commands = BTreeSet::new();
        visible(&Cli::command(), "", &mut commands);
        let guided: BTreeSet<String> = GUIDES.iter().map(|guide| guide.path.to_owned()).collect();
        assert_eq!(guided, commands);
        assert_eq!(guided.len(), GUIDES.len());
        let top: Vec<&String> = commands.iter().filter(|path| !path.contains(' ')).collect();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        listed.retain(|name| *name != "help");
        listed.sort_unstable();
        assert_eq!(listed, top);
        let help = command_line().render_help().to_string();
        for path in top {
            assert!(help.contains(&format!("\n  {path} ")), "{path} is missing in\n{help}");
        }
    }

    #[test]
    fn every_example_is_accepted_by_the_command_line() {
        for guide in GUIDES {
            for (example, _) in guide.examples {
                let line = &example[example.find("segue ").unwrap()..];
                let line = line.split(" > ").next().unwrap();
                // Words in quotes are one argument.
                let words = line.split('"').enumerate().flat_map(|(number, part)| match number % 2 {
                    0 => part.split_whitespace().map(str::to_owned).collect(),
                    _ => vec![part.to_owned()],
                });
                let words: Vec<String> = words.collect();
                let read = command_line().try_get_matches_from(&words);
                assert!(read.is_ok(), "{example}: {}", read.unwrap_err());
                assert!(line.starts_with(&format!("segue {}", guide.path)), "{example}");
            }
        }
    }

    #[test]
    fn options_of_the_connection_stand_apart_in_the_help_of_each_command_that_has_them() {
        let mut command = command_line();
        let help = command.find_subcommand_mut("move").unwrap().render_long_help().to_string();
        let (options, connection) = help.split_once("\nConnection:\n").unwrap();
        assert!(options.contains("--json") && options.contains("--why") && !options.contains("--etcd"), "{help}");
        for part in
            ["--etcd", "[env: SEGUE_CONFIG]", "[env: SEGUE_SERVER]", "[env: SEGUE_KEYSPACE]", "[env: SEGUE_TOKEN_FILE]"]
        {
            assert!(connection.contains(part), "{part} is missing in\n{help}");
        }
        assert!(
            connection.contains("Examples:\n  segue move 4") && connection.contains("Exit codes:\n  0  "),
            "{help}"
        );
    }
}
