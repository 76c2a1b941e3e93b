//! The command line as a user meets it: which keyspace a command is for, completions and manual pages.
use std::fs;
use std::io::pipe;
use std::process::{Output, Stdio};

use segue_tests::ports::free_address;
use tempfile::TempDir;

use crate::cli::{file, segue, stderr};

/// Runs a command with these variables. Returns its exit code, and what it said of its failure.
fn fails(words: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = segue().args(words).envs(variables.iter().copied()).output().unwrap();
    (output.status.code(), stderr(&output))
}

#[test]
fn an_option_beats_every_variable_and_a_named_server_beats_a_named_file() {
    let [option, variable] = [(); 2].map(|()| format!("http://{}", free_address()));
    let (server, file) = (("SEGUE_SERVER", &*variable), ("SEGUE_CONFIG", "/nowhere/segue.toml"));
    // What is tried is named, because none of it exists.
    for (words, variables, expected, named) in [
        (&[][..], &[server][..], 3, &*variable),
        (&[], &[file], 2, "/nowhere/segue.toml"),
        (&[], &[server, file], 3, &variable),
        (&["--server", &option], &[server, file], 3, &option),
        (&["--etcd", &option], &[server, file], 3, &option),
        (&["--config", "/other/segue.toml"], &[server, file], 2, "/other/segue.toml"),
        (&[], &[("SEGUE_SERVER", ""), file], 2, "/nowhere/segue.toml"),
        (&["--server", &option, "--config", "/other/segue.toml"], &[], 2, "cannot be used with"),
    ] {
        let (code, said) = fails(&[&["status"], words].concat(), variables);
        assert!(code == Some(expected) && said.contains(named), "{words:?} {variables:?}: {code:?} {said}");
        assert_eq!(
            said.lines().next().map(|line| line.contains("/nowhere")),
            Some(named.contains("/nowhere")),
            "{said}"
        );
    }
    let (code, said) = fails(&["conformance", "--pod", "http://a:1"], &[file]);
    assert!(code == Some(2) && said.contains("/nowhere/segue.toml"), "{said}");
}

#[test]
fn a_variable_names_the_keyspace_unless_an_option_does() {
    let folder = TempDir::new().unwrap();
    let table = |name| format!("[[keyspaces]]\nname = {name:?}\n");
    let etcd = free_address();
    let text = format!("[store]\nendpoints = [\"http://{etcd}\"]\n[coordinator]\n{}{}", table("a"), table("b"));
    let path = file(&folder, &text);
    let variables = [("SEGUE_CONFIG", path.to_str().unwrap()), ("SEGUE_KEYSPACE", "c")];
    let (code, said) = fails(&["status"], &variables);
    assert!(
        code == Some(2) && said.contains("no keyspace c, which SEGUE_KEYSPACE names; expected one of a, b"),
        "{said}"
    );
    let (code, said) = fails(&["status", "--keyspace", "a"], &variables);
    assert!(code == Some(3) && said.contains(&etcd.to_string()), "{said}");
    let (code, said) = fails(&["status"], &variables[..1]);
    assert!(code == Some(2) && said.contains("expected --keyspace, one of a, b"), "{said}");
}

#[test]
fn a_token_goes_to_a_named_endpoint_alone() {
    let server = format!("http://{}", free_address());
    let token = ("SEGUE_TOKEN_FILE", "/nowhere/token");
    let (code, said) = fails(&["status"], &[("SEGUE_SERVER", &server), token]);
    assert!(code == Some(2) && said.contains("token file /nowhere/token"), "{said}");
    let (code, said) = fails(&["status", "--server", &server], &[token]);
    assert!(code == Some(2) && said.contains("token file /nowhere/token"), "{said}");
    let (code, said) = fails(&["status", "--token-file", "/other/token"], &[("SEGUE_CONFIG", "/nowhere/segue.toml")]);
    assert!(code == Some(2) && said.contains("--token-file needs --server or SEGUE_SERVER"), "{said}");
    // A store needs none, and an endpoint that nobody has named gets none.
    let (code, said) = fails(&["status", "--etcd", &server], &[token]);
    assert!(code == Some(3) && !said.contains("token"), "{said}");
}

#[test]
fn files_of_authorities_need_an_endpoint_that_is_asked_by_tls() {
    let file = [("SEGUE_CONFIG", "/nowhere/segue.toml")];
    for (words, variables, expected) in [
        (&["status", "--ca", "ca.pem"][..], &file[..], "--ca is for --etcd and --server"),
        (&["status", "--ca", "ca.pem"], &[], "--ca needs --etcd or --server"),
        (
            &["explain", "1", "--admin-ca", "ca.pem"],
            &[("SEGUE_SERVER", "http://127.0.0.1:1")],
            "--admin-ca is for commands",
        ),
    ] {
        let (code, said) = fails(words, variables);
        assert!(code == Some(2) && said.contains(expected), "{words:?}: {said}");
    }
}

#[test]
fn variables_of_commands_are_no_settings_of_a_file() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "keyspace = \"k\"\n[coordinator]\n");
    let variables = [
        ("SEGUE_CONFIG", "/nowhere/segue.toml"),
        ("SEGUE_SERVER", "http://127.0.0.1:1"),
        ("SEGUE_KEYSPACE", "other"),
        ("SEGUE_TOKEN_FILE", "/nowhere/token"),
    ];
    assert_eq!(fails(&["check", path.to_str().unwrap()], &variables), (Some(0), String::new()));
}

#[test]
fn completions_ask_this_program_and_know_the_values_of_options() {
    let offered = |words: &[&str]| {
        let index = (words.len() - 1).to_string();
        let mut command = segue();
        command.arg("--").args(words).env("SEGUE_COMPLETE", "bash").env("_CLAP_IFS", "|");
        let output: Output = command.env("_CLAP_COMPLETE_INDEX", index).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(offered(&["segue", "unp"]), "unpin");
    assert_eq!(offered(&["segue", "demo", "--scenario", "scale"]), "scale-up|scale-down");
    assert_eq!(offered(&["segue", "demo", "--coordination", "r"]), "rounds");
    assert_eq!(offered(&["segue", "status", "--serv"]), "--server");
    for (shell, part) in [("bash", "complete "), ("zsh", "#compdef segue"), ("fish", "complete ")] {
        let output = segue().args(["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(script.contains(part) && script.contains("SEGUE_COMPLETE"), "{script}");
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let unread = segue().args(["completions", shell]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!((unread.status.code(), stderr(&unread)), (Some(0), String::new()));
    }
}

#[test]
fn manual_pages_have_examples_and_exit_codes_and_one_is_of_the_file() {
    let folder = TempDir::new().unwrap();
    let written = segue().arg("man").arg(folder.path()).output().unwrap();
    assert!(written.status.success(), "{}", stderr(&written));
    let page = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    for entry in fs::read_dir(folder.path().join("man1")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let text = page(&format!("man1/{name}"));
        for section in [".SH \"EXIT STATUS\"", ".SH EXAMPLES"] {
            assert!(name == "segue.1" || text.contains(section), "{name} lacks {section}");
        }
        assert!(!text.contains(".SH EXTRA"), "{name}");
    }
    assert!(page("man1/segue-move.1").contains("segue move 4 \\-\\-to writer\\-2"));
    assert!(page("man1/segue-wait-settled.1").contains(".SH CONNECTION"));
    let file = page("man5/segue.toml.5");
    assert!(file.starts_with(".") && file.contains("segue.toml 5") && file.contains("max_wait = "), "{file}");
}
