//! `segue completions` and `segue man`: what shells and `man` read about the command line.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap_complete::Shell;
use clap_complete::engine;
use clap_complete::env::{Bash, CompleteEnv, Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::bash_words::joined;
use super::output::write;
use super::{CommandFailure, command_line, guides};

/// The variable by which a shell asks for completions. It names the shell.
const VARIABLE: &str = "SEGUE_COMPLETE";
/// What ends the script of zsh: a function that is loaded by its name completes the first time, too.
const ZSH_AUTOLOAD: &str = "[[ $funcstack[1] = _segue ]] && _clap_dynamic_completer_segue \"$@\"\n";

/// The annotated configuration, which is the manual page of the file.
const CONFIGURATION: &str = include_str!("../../config/segue.example.toml");

/// The shell.
#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// Shell that reads the completions.
    shell: Shell,
}

/// Prints the completions for a shell: a script that asks this program.
pub(super) fn completions(args: &CompletionsArgs) -> Result<(), CommandFailure> {
    let name = args.shell.to_string();
    let shell = SHELLS.completer(&name).with_context(|| format!("no completions for {name}"))?;
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, "segue", "segue", "segue", &mut script)
        .context("cannot make the completions")?;
    if args.shell == Shell::Zsh {
        script.extend(ZSH_AUTOLOAD.bytes());
    }
    write(&script)?;
    Ok(())
}

/// Answers a shell that asks for completions, and exits. Returns if none does.
pub(super) fn answer_shell() {
    CompleteEnv::with_factory(command_line).var(VARIABLE).bin("segue").completer("segue").shells(SHELLS).complete();
}

const SHELLS: Shells<'static> = Shells(&[&BashWithUrls, &Elvish, &Fish, &Powershell, &Zsh]);

/// bash, which splits the words of a command line at colons and equals signs, so that a URL is several words.
struct BashWithUrls;

impl EnvCompleter for BashWithUrls {
    fn name(&self) -> &'static str {
        Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        Bash.is(name)
    }

    fn write_registration(
        &self,
        variable: &str,
        name: &str,
        bin: &str,
        completer: &str,
        script: &mut dyn io::Write,
    ) -> io::Result<()> {
        Bash.write_registration(variable, name, bin, completer, script)
    }

    fn write_complete(
        &self,
        command: &mut clap::Command,
        words: Vec<OsString>,
        current_dir: Option<&Path>,
        answer: &mut dyn io::Write,
    ) -> io::Result<()> {
        let of_script = |name: &str| std::env::var(name).unwrap_or_default();
        let index = of_script("_CLAP_COMPLETE_INDEX").parse().unwrap_or_default();
        let (words, index) = joined(words, index);
        let candidates = engine::complete(command, words, index, current_dir)?;
        let values: Vec<_> = candidates.iter().map(|candidate| candidate.get_value().to_string_lossy()).collect();
        write!(answer, "{}", values.join(&of_script("_CLAP_IFS")))
    }
}

/// Where the pages go.
#[derive(Debug, clap::Args)]
pub(super) struct ManArgs {
    /// Folder for the pages, such as /usr/local/share/man: pages of commands go into man1 in it, that of segue.toml into
    /// man5.
    folder: PathBuf,
}

/// Writes the manual pages.
pub(super) fn man(args: &ManArgs) -> Result<(), CommandFailure> {
    let mut command = command_line().disable_help_subcommand(true);
    command.build();
    let (commands, files) = (args.folder.join("man1"), args.folder.join("man5"));
    let pages = || {
        fs::create_dir_all(&commands)?;
        fs::create_dir_all(&files)?;
        write_pages(&command, &commands)?;
        fs::write(files.join("segue.toml.5"), configuration_page()?)
    };
    pages().with_context(|| format!("cannot write manual pages into {}", args.folder.display()))?;
    Ok(())
}

/// Writes the page of a command and those of its subcommands.
fn write_pages(command: &clap::Command, folder: &Path) -> io::Result<()> {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        write_pages(sub, folder)?;
    }
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().any(|sub| !sub.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(guide) = guides::of(command) {
        let mut roff = Roff::default();
        roff.control("SH", ["EXIT STATUS"]);
        for (code, meaning) in guide.exit_codes() {
            roff.control("TP", []);
            roff.text([bold(code)]);
            roff.text([roman(meaning)]);
        }
        roff.control("SH", ["EXAMPLES"]);
        for (example, effect) in guide.examples {
            roff.control("TP", []);
            roff.text([bold(*example)]);
            roff.text([roman(*effect)]);
        }
        roff.to_writer(&mut page)?;
    }
    if command.get_version().is_some() {
        man.render_version_section(&mut page)?;
    }
    fs::write(folder.join(man.get_filename()), page)
}

/// Returns the manual page of the configuration file.
fn configuration_page() -> io::Result<Vec<u8>> {
    let mut roff = Roff::default();
    let version = concat!("segue ", env!("CARGO_PKG_VERSION"));
    roff.control("TH", ["segue.toml", "5", "", version, ""]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("segue.toml - configuration of the roles that segue run starts")]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman("Each key with its default. A file may be checked by"), bold(" segue check"), roman(".")]);
    roff.control("PP", []);
    roff.control("nf", []);
    for line in CONFIGURATION.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    let mut page = Vec::new();
    roff.to_writer(&mut page)?;
    Ok(page)
}
