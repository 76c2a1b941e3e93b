//! The files of the README, as they stand there. Variables give them free addresses and the test's etcd.

use std::net::SocketAddr;
use std::process::Command;

use segue_tests::cluster::TestCluster;
use segue_tests::http::{Request, is_ready};
use segue_tests::ports::free_address;
use segue_tests::process::Process;

use crate::site::SEGUE;

const README: &str = include_str!("../../README.md");

/// Returns the whole configuration files.
fn files() -> Vec<&'static str> {
    let blocks = README.split("```toml\n").skip(1).filter_map(|rest| rest.split_once("```"));
    blocks.map(|(block, _)| block).filter(|block| block.contains("[store]")).collect()
}

#[test]
fn the_files_of_the_readme_start_as_they_stand_and_serve_a_request() {
    let cluster = TestCluster::start(SEGUE);
    std::fs::create_dir(cluster.path().join("persons")).unwrap();
    std::fs::write(cluster.path().join("persons/42"), "Ann\n").unwrap();
    let (router, upstream) = (free_address(), free_address());
    let service = format!(r#"["python3", "-m", "http.server", "{}", "--bind", "127.0.0.1"]"#, upstream.port());
    let files = files();
    let mut processes: Vec<(Process, SocketAddr)> = Vec::new();
    for (section, variables) in [
        ("[router]", vec![("SEGUE__ROUTER__LISTEN", router.to_string())]),
        ("[coordinator]", Vec::new()),
        (
            "[pod]",
            vec![
                ("SEGUE__POD__LISTEN", free_address().to_string()),
                ("SEGUE__POD__UPSTREAM", upstream.to_string()),
                ("SEGUE__POD__EXEC", service.clone()),
            ],
        ),
    ] {
        let found: Vec<_> = files.iter().filter(|text| text.contains(&format!("\n{section}\n"))).collect();
        let [text] = found[..] else { panic!("{} files have {section}", found.len()) };
        let (file, admin) = (cluster.path().join(format!("{section}.toml")), free_address());
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(SEGUE);
        command.args(["run", "--config"]).arg(file).current_dir(cluster.path()).envs(variables);
        command
            .env("SEGUE__STORE__ENDPOINTS", cluster.etcd().endpoint())
            .env("SEGUE__ADMIN__LISTEN", admin.to_string());
        processes.push((Process::start(section, cluster.path(), &mut command), admin));
    }
    assert_eq!(files.len(), processes.len(), "a file of the README is not started");
    for (process, admin) in &mut processes {
        process.until("/ready", || is_ready(*admin));
    }
    let (pod, _) = processes.last_mut().unwrap();
    let ask = || Request::get("/persons/42").send(router).is_some_and(|answer| answer.body == "Ann\n");
    pod.until("a response of the service", ask);
}
