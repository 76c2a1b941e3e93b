//! The sidecar's claims when it or its service fails alone: nothing that the old owner's service does takes effect once
//! the next owner has begun to write. Sidecars and services are real processes, and services log each write.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::ops::Deref;
use std::time::{Duration, Instant};

use segue_tests::http::{get, is_ready};
use segue_tests::process::until;

use crate::service::{self, Settings, Write};
use crate::site::supervised::{self, By, Pod};
use crate::site::{Site, ask};

/// The TTL of a pod's lease.
const TTL: Duration = Duration::from_secs(2);
/// A router, a coordinator and one partition.
struct OnePartition(Site);

impl Deref for OnePartition {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.0
    }
}

impl OnePartition {
    fn start() -> Self {
        OnePartition(Site::start(1))
    }

    fn pod(&self, name: &str, by: By, kind: &str, more: &str) -> Pod {
        let config = self.config().with("pod", more).lease("pod", &format!("{}s", TTL.as_secs()));
        supervised::pod(self, config, name, by, kind)
    }

    /// Waits until `pod` serves.
    fn served_by(&self, pod: &str) {
        self.0.served_by(pod, "/");
    }

    /// Begins work in the service and waits until it writes. Returns the thread that waits for the response.
    fn work(&self, millis: u32) -> std::thread::JoinHandle<Option<(u16, String)>> {
        let (router, before) = (self.router, self.writes().len());
        let answer = std::thread::spawn(move || ask(router, &format!("/work?{millis}")));
        until("write", || self.writes().len() > before);
        answer
    }

    fn writes(&self) -> Vec<Write> {
        service::writes(&supervised::log(self))
    }

    /// Asserts that no service wrote after a later owner's had begun to.
    fn single_writer(&self) {
        let writes = self.writes();
        let order: Vec<_> = writes.iter().map(|write| (write.epoch, write.name.as_str())).collect();
        assert!(order.is_sorted_by_key(|(epoch, _)| epoch), "an earlier owner writes beside a later one: {order:?}");
    }

    /// Has the next owner write, and compares its writes with the earlier ones.
    fn succeeded_by(&self, pod: &str) {
        until(&format!("work of {pod}"), || {
            self.ask("/work?300").is_some_and(|(status, body)| status == 200 && body.starts_with(pod))
        });
        self.single_writer();
    }
}

/// Starts a cluster whose partition `a` owns and `b` would get, with `a` writing for six seconds.
fn working(by: By, kind: &str, more: &str) -> (OnePartition, Pod, Pod) {
    working_in(OnePartition::start(), by, kind, more)
}

fn working_in(fixture: OnePartition, by: By, kind: &str, more: &str) -> (OnePartition, Pod, Pod) {
    let a = fixture.pod("a", by, kind, more);
    fixture.served_by("a");
    let b = fixture.pod("b", by, "plain", more);
    until("registration of b", || is_ready(b.admin));
    // `sticky` leaves the one partition where it is.
    drop(fixture.work(6000));
    (fixture, a, b)
}

#[test]
fn a_supervised_service_dies_with_its_sidecar() {
    let (fixture, a, _b) = working(By::Exec, "plain", "");
    a.sidecar.kill();
    fixture.succeeded_by("b");
    let last = fixture.writes().into_iter().rfind(|write| write.name == "a").unwrap();
    assert!(last.number < 100, "the service of a has written to its end: {last:?}");
    assert!(
        fixture.output("a").contains("the sidecar is gone"),
        "killed by the deadline only: {}",
        fixture.output("a")
    );
}

#[test]
fn a_supervised_services_own_processes_die_with_its_sidecar() {
    let (fixture, a, _b) = working(By::Exec, "prefork", "");
    a.sidecar.kill();
    fixture.succeeded_by("b");
}

#[test]
fn a_service_with_a_lent_lease_stops_when_its_sidecar_is_dead() {
    let (fixture, a, _b) = working(By::Lease, "lent", "");
    a.sidecar.kill();
    fixture.succeeded_by("b");
}

#[test]
fn a_stopped_sidecar_keeps_no_service_writing() {
    let (fixture, mut a, _b) = working(By::Exec, "plain", "");
    a.sidecar.signal("STOP");
    let stopped = Instant::now();
    fixture.succeeded_by("b");
    assert!(fixture.output("a").contains("the lease may have ended"), "{}", fixture.output("a"));
    until("three lease times", || stopped.elapsed() > 3 * TTL);
    a.sidecar.signal("CONT");
    a.sidecar.until("another life of a", || fixture.status().count("\"status\":\"Ready\"") == 2);
    fixture.succeeded_by("b");
}

#[test]
fn a_stopped_sidecar_does_not_prolong_what_it_has_lent() {
    let (fixture, a, _b) = working(By::Lease, "lent", "");
    a.sidecar.signal("STOP");
    let stopped = Instant::now();
    fixture.succeeded_by("b");
    until("three lease times", || stopped.elapsed() > 3 * TTL);
    a.sidecar.signal("CONT");
    until("another life of a", || fixture.status().count("\"status\":\"Ready\"") == 2);
    fixture.succeeded_by("b");
}

#[test]
fn a_supervised_service_that_is_killed_ends_its_sidecar_and_its_partition_moves() {
    let (fixture, mut a, _b) = working(By::Exec, "plain", "");
    let service = fixture.writes().last().unwrap().pid;
    service::kill(service);
    let status = a.sidecar.wait();
    assert_eq!(status.code(), Some(137), "{}", a.sidecar.output());
    fixture.succeeded_by("b");
}

#[test]
fn a_supervised_service_that_ends_by_itself_leaves_no_child_that_writes() {
    let fixture = OnePartition::start();
    let mut a = fixture.pod("a", By::Exec, "leaves-a-child", "");
    fixture.served_by("a");
    let b = fixture.pod("b", By::Exec, "plain", "");
    until("registration of b", || is_ready(b.admin));
    assert!(fixture.ask("/work?60000").is_some_and(|(status, _)| status == 502));
    let status = a.sidecar.wait();
    let child = fixture.writes()[0].pid;
    assert!(!service::is_alive(child), "{}", a.sidecar.output());
    assert_eq!(status.code(), Some(0), "{}", a.sidecar.output());
    fixture.succeeded_by("b");
}

#[test]
fn a_supervised_services_exit_code_is_its_sidecars() {
    let fixture = OnePartition::start();
    let mut a = fixture.pod("a", By::Exec, "plain", "");
    fixture.served_by("a");
    drop(fixture.ask("/exit?7"));
    assert_eq!(a.sidecar.wait().code(), Some(7), "{}", a.sidecar.output());
    until("end of the registration", || !fixture.status().contains("\"name\":\"a\""));
}

#[test]
fn a_sidecar_that_is_told_to_end_hands_over_and_ends_its_service() {
    let fixture = OnePartition::start();
    let a = fixture.pod("a", By::Exec, "plain", "");
    fixture.served_by("a");
    fixture.work(20).join().unwrap();
    let service = fixture.writes()[0].pid;
    let _b = fixture.pod("b", By::Exec, "plain", "");
    let (status, output) = a.sidecar.terminate();
    assert!(status.success(), "{output}");
    assert!(!service::is_alive(service), "{output}");
    fixture.succeeded_by("b");
}

#[test]
fn signals_reach_a_supervised_service() {
    let fixture = OnePartition::start();
    let mut a = fixture.pod("a", By::Exec, "plain", "");
    fixture.served_by("a");
    // Which ends it, as it does nothing about it.
    a.sidecar.signal("USR1");
    assert_eq!(a.sidecar.wait().code(), Some(128 + 10), "{}", a.sidecar.output());
}

#[test]
fn a_supervisor_that_is_killed_takes_the_service_with_it() {
    let (fixture, mut a, _b) = working(By::Exec, "prefork", "");
    let supervisor = service::children(a.sidecar.id());
    assert_eq!(supervisor.len(), 1);
    service::kill(supervisor[0]);
    assert_eq!(a.sidecar.wait().code(), Some(137), "{}", a.sidecar.output());
    fixture.succeeded_by("b");
}

#[test]
fn a_service_that_dies_behind_its_sidecar_costs_no_request_that_it_was_not_sent() {
    let fixture = OnePartition::start();
    let a = fixture.pod("a", By::Nothing, "plain", "");
    fixture.served_by("a");
    let _b = fixture.pod("b", By::Nothing, "plain", "");
    a.service.unwrap().kill();
    // A request on a connection whose end the sidecar has not seen yet would have been sent, and be answered 502.
    until("the sidecar to see its connections closed", || service::connections_to(a.upstream) == 0);
    assert_eq!(fixture.ask("/").map(|(status, _)| status), Some(200), "held until the partition has moved");
    fixture.succeeded_by("b");
    assert!(fixture.status().contains("Draining"), "{}", fixture.status());
}

#[test]
fn a_service_that_comes_back_at_once_keeps_its_partition_and_loses_no_request() {
    let fixture = OnePartition::start();
    let mut a = fixture.pod("a", By::Nothing, "plain", "health = { every = \"5s\" }\n");
    fixture.served_by("a");
    a.service.take().unwrap().kill();
    until("the sidecar to see its connections closed", || service::connections_to(a.upstream) == 0);
    let router = fixture.router;
    let held = std::thread::spawn(move || ask(router, "/"));
    until("refusal", || a.sidecar.output().contains("the request is given back"));
    let again = Settings { name: "a", kind: "plain", listen: a.upstream, log: &supervised::log(&fixture) };
    a.service = Some(supervised::start(&fixture, "a-again", &again));
    let (status, body) = held.join().unwrap().unwrap();
    assert_eq!((status, body.as_str()), (200, "a"));
}

#[test]
fn an_exchange_that_the_service_broke_says_so_to_the_client() {
    let fixture = OnePartition::start();
    let _a = fixture.pod("a", By::Nothing, "plain", "");
    fixture.served_by("a");
    let mut client = TcpStream::connect(fixture.router).unwrap();
    write!(client, "GET /exit?1 HTTP/1.1\r\nhost: x\r\nx-partition: 0\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    assert!(answer.to_lowercase().contains("segue-reason: upstream-failed\r\n"), "{answer}");
    assert!(answer.contains("\"reason\":\"upstream-failed\"") && answer.contains("\"partition\":0"), "{answer}");
}

#[test]
fn both_die_and_the_partition_moves() {
    let (fixture, a, _b) = working(By::Exec, "plain", "");
    let service = fixture.writes().last().unwrap().pid;
    a.sidecar.signal("STOP");
    service::kill(service);
    a.sidecar.kill();
    fixture.succeeded_by("b");
}

/// As [`working`], by a request that no router knows of any more: it was cut off in the midst of its upload, after the
/// service had begun.
fn working_alone(by: By) -> (OnePartition, Pod, Pod) {
    let fixture = OnePartition::start();
    let a = fixture.pod("a", by, "eager", "");
    fixture.served_by("a");
    fixture.work(20).join().unwrap();
    let (epoch, before) = (fixture.writes()[0].epoch, fixture.writes().len());
    let mut upload = TcpStream::connect(a.listen).unwrap();
    let head = format!("POST /work?6000 HTTP/1.1\r\nhost: x\r\nsegue-partition: 0\r\nsegue-epoch: {epoch}\r\n");
    write!(upload, "{head}content-length: 100\r\n\r\nten bytes.").unwrap();
    until("write", || fixture.writes().len() > before);
    drop(upload);
    let b = fixture.pod("b", by, "plain", "");
    until("registration of b", || is_ready(b.admin));
    (fixture, a, b)
}

#[test]
fn a_service_that_ignores_closed_connections_keeps_its_partition_until_it_has_finished() {
    let (fixture, a, _b) = working_alone(By::Nothing);
    let leaving = std::thread::spawn(move || a.sidecar.terminate());
    fixture.succeeded_by("b");
    let last = fixture.writes().into_iter().rfind(|write| write.name == "a").unwrap();
    assert_eq!(last.number, 299, "it has finished: {last:?}");
    let (status, output) = leaving.join().unwrap();
    assert!(status.success(), "{output}");
}

#[test]
fn a_sidecar_that_dies_before_its_service_has_finished_has_its_bound_waited_out() {
    let (fixture, a, _b) = working_alone(By::Bound(7));
    a.sidecar.signal("TERM");
    until("handoff that waits for a", || fixture.status().contains("pod a to drain"));
    a.sidecar.kill();
    fixture.succeeded_by("b");
    let last = fixture.writes().into_iter().rfind(|write| write.name == "a").unwrap();
    assert_eq!(last.number, 299, "it has finished: {last:?}");
}

#[test]
fn a_host_that_stops_answering_is_succeeded_within_seconds() {
    // A drain that is waited for outlasts every patience here.
    let site = Site::with(|_, config| {
        let config = config.coordinator("c-0", 1).set("coordinator.phase_timeout", "15m");
        config.set("router.stash.max_wait", "20m").set("router.drain.timeout", "10m")
    });
    let (fixture, a, _b) = working_in(OnePartition(site), By::Exec, "plain", "");
    let supervisor = service::children(a.sidecar.id());
    let all = [supervisor[0], service::children(supervisor[0] as u32)[0]];
    a.sidecar.signal("STOP");
    all.iter().for_each(|pid| service::stop(*pid));
    fixture.served_by("b");
    all.iter().for_each(|pid| service::kill(*pid));
    fixture.succeeded_by("b");
}

#[test]
fn a_service_that_hangs_but_works_is_waited_for() {
    let health = "health = { path = \"/health\", every = \"200ms\", unhealthy_after = 2 }\n";
    let (fixture, _a, _b) = working(By::Nothing, "hangs", health);
    fixture.succeeded_by("b");
}

#[test]
fn a_supervised_service_that_hangs_but_works_is_killed() {
    let health = "health = { path = \"/health\", every = \"200ms\", unhealthy_after = 2 }\n";
    let (fixture, mut a, _b) = working(By::Exec, "hangs", health);
    let killed = fixture.writes().pop().unwrap();
    // The service of a is up again soon enough to get the partition back, in another life.
    until("work of a later owner", || {
        fixture.ask("/work?20").is_some_and(|(status, _)| status == 200)
            && fixture.writes().pop().unwrap().epoch > killed.epoch
    });
    fixture.single_writer();
    assert!(!service::is_alive(killed.pid), "{killed:?}");
    a.sidecar.until("another life of a", || fixture.status().count("\"status\":\"Ready\"") == 2);
}

#[test]
fn a_registration_outlives_what_its_service_was_lent() {
    let (fixture, a, _b) = working(By::Lease, "stubborn", "shutdown_timeout = \"1s\"\n");
    let leaving = std::thread::spawn(move || a.sidecar.terminate());
    fixture.succeeded_by("b");
    let (status, output) = leaving.join().unwrap();
    assert!(status.success(), "{output}");
}

#[test]
fn a_new_owner_waits_out_the_bound_of_a_dead_one() {
    let (fixture, a, _b) = working(By::Bound(7), "plain", "");
    a.sidecar.kill();
    fixture.succeeded_by("b");
    let last = fixture.writes().into_iter().rfind(|write| write.name == "a").unwrap();
    assert!(last.number > 100, "the service of a was to write on: {last:?}");
}

#[test]
fn a_pod_without_any_of_them_has_no_fence_and_says_so() {
    let fixture = OnePartition::start();
    let a = fixture.pod("a", By::Nothing, "plain", "");
    fixture.served_by("a");
    let status = fixture.status();
    assert!(status.contains("\"capabilities\":[\"drained\",\"released\"]"), "{status}");
    assert!(status.contains("work_ends_within"), "how to change it: {status}");
    assert!(a.sidecar.output().contains("no fence"), "{}", a.sidecar.output());
    let (_, own) = get(a.admin, "/status").unwrap();
    assert!(own.contains("\"fence_by\":null"), "{own}");
    let _b = fixture.pod("b", By::Bound(5), "plain", "");
    until("registration of b", || fixture.status().contains("\"drained\",\"released\",\"fence\""));
}
