//! temporary
use segue::demo::*;
use std::time::Duration;
fn main() {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let arg = |name: &str| {
        let mut a = std::env::args().skip_while(|a| a != name);
        a.next();
        a.next()
    };
    let rt = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut o = Options { progress: Progress::Stderr, ..Options::default() };
    if let Some(d) = arg("--duration") {
        o.duration = Duration::from_secs(d.parse().unwrap());
    }
    if let Some(d) = arg("--scenario") {
        o.scenario = d.parse().unwrap();
    }
    if let Some(d) = arg("--seed") {
        o.seed = d.parse().unwrap();
    }
    if let Some(d) = arg("--rate") {
        o.rate = d.parse().unwrap();
    }
    if let Some(d) = arg("--routers") {
        o.routers = d.parse().unwrap();
    }
    if let Some(d) = arg("--partitions") {
        o.partitions = d.parse().unwrap();
    }
    if let Some(d) = arg("--etcd") {
        o.etcd = Some(d);
    }
    if let Some(d) = arg("--sabotage") {
        o.sabotage = match d.as_str() {
            "early" => Sabotage::SwitchesEarly,
            "guarded" => Sabotage::SwitchesEarlyTowardsGuardedPods,
            "twice" => Sabotage::SendsTwice,
            "drop" => Sabotage::DropsWrites,
            _ => Sabotage::AnswersFirst,
        }
    }
    let r = rt.block_on(run(o)).unwrap();
    println!("{r}");
    if std::env::args().any(|a| a == "--json") {
        println!("{}", r.to_json());
    }
}
