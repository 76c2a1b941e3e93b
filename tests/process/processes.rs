//! The whole system as processes: etcd, routers, coordinators and writer pods.
//!
//! Pods join, leave and are killed, and so are a router and the leader, all under load. Then clients' records are
//! compared with the pods' logs.

use segue_tests::http::get;
use segue_tests::ports::free_address;

use crate::writers::load::CheckedLoad;
use crate::writers::{LeaseTtls, WriterCluster};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_pods_routers_and_the_leader_come_and_go() {
    let mut cluster = WriterCluster::start();
    cluster.leases = LeaseTtls { coordinator: 2, router: 2, writer: 2 };
    let (routers, admins) = ([free_address(), free_address()], [free_address(), free_address()]);
    cluster.coordinator("c-0");
    cluster.coordinator("c-1");
    for name in ["w-0", "w-1", "w-2"] {
        cluster.writer(name);
    }
    for (index, name) in ["r-0", "r-1"].into_iter().enumerate() {
        cluster.router(name, routers[index], admins[index]);
    }
    cluster.settles(&["w-0", "w-1", "w-2"]);

    let load = CheckedLoad::start(&routers, 24, 2, 7);
    let flows = |what: &str| load.flows(what);

    tokio::task::block_in_place(|| {
        flows("at rest");
        cluster.writer("w-3");
        cluster.settles(&["w-0", "w-1", "w-2", "w-3"]);
        flows("after a pod has joined");

        let (status, output) = cluster.take("w-0").terminate();
        assert!(status.success(), "w-0 did not leave gracefully:\n{output}");
        cluster.settles(&["w-1", "w-2", "w-3"]);
        flows("after a pod has left");

        cluster.take("w-1").kill();
        cluster.settles(&["w-2", "w-3"]);
        flows("after a pod was killed");

        let leader = cluster.status().leader().unwrap().to_owned();
        cluster.writer("w-4");
        cluster.take(&leader).kill();
        cluster.settles(&["w-2", "w-3", "w-4"]);
        assert_ne!(cluster.status().leader(), Some(leader.as_str()));
        flows("after the leader was killed");

        cluster.take("r-1").kill();
        cluster.writer("w-5");
        cluster.settles(&["w-2", "w-3", "w-4", "w-5"]);
        cluster.router("r-1", routers[1], admins[1]);
        flows("after a router was killed and came back");

        let (status, output) = cluster.take("r-0").terminate();
        assert!(status.success(), "r-0 did not end gracefully:\n{output}");
        cluster.router("r-0", routers[0], admins[0]);
        flows("after a router was restarted");
    });

    let shown = load.finish(&cluster.logs()).await;
    let (answered, records) = (shown.answered, shown.log.len());
    assert!(answered > 2_000 && records > 1_000, "{answered} answered, {records} records: too little to tell");
    assert!(shown.reads_checked > 200);

    let (_, metrics) = get(admins[0], "/metrics").unwrap();
    assert!(metrics.contains("segue_cutovers_total{result=\"switched\"}"), "{metrics}");
}
