//! The metrics of the process as the kernel sees it, by the names that Prometheus gives them (`process_*`).
//!
//! # Invariants
//! * The number of open files and its limit are there without a file to spare: that is when the alert needs them. Before
//!   Linux 6.2 the count needs one.

use std::fmt;

use procfs::WithCurrentSystemInfo as _;
use procfs::process::Process;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use rustix::process::{Resource, getrlimit};

/// Returns a registry with the metrics of this process. They have no prefix.
pub(crate) fn process_registry() -> Registry {
    let mut registry = Registry::default();
    // Without `/proc` there is nothing to tell.
    if let Ok(process) = Process::myself() {
        registry.register_collector(Box::new(ProcessMetrics(process)));
    }
    registry
}

/// Reads `/proc/self`, which stays open, for each page.
#[derive(Debug)]
struct ProcessMetrics(Process);

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(process) = self;
        if let Ok(stat) = process.stat() {
            let ticks = procfs::ticks_per_second() as f64;
            let none: Option<&Exemplar<[(&str, &str); 0], u64>> = None;
            let help = "Total user and system CPU time spent in seconds";
            let mut cpu = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            cpu.encode_counter(&((stat.utime + stat.stime) as f64 / ticks), none)?;
            if let Ok(booted) = procfs::boot_time_secs() {
                let started = booted as f64 + stat.starttime as f64 / ticks;
                let help = "Start time of the process since unix epoch in seconds";
                gauge(&mut encoder, "process_start_time_seconds", help, &started)?;
            }
            let help = "Virtual memory size in bytes";
            gauge(&mut encoder, "process_virtual_memory_bytes", help, &(stat.vsize as i64))?;
            let resident = stat.rss_bytes().get() as i64;
            gauge(&mut encoder, "process_resident_memory_bytes", "Resident memory size in bytes", &resident)?;
            gauge(&mut encoder, "process_threads", "Number of OS threads in the process", &stat.num_threads)?;
        }
        if let Ok(open) = process.fd_count() {
            gauge(&mut encoder, "process_open_fds", "Number of open file descriptors", &(open as i64))?;
        }
        let most = getrlimit(Resource::Nofile).current.map_or(f64::INFINITY, |files| files as f64);
        gauge(&mut encoder, "process_max_fds", "Maximum number of open file descriptors", &most)?;
        Ok(())
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: &impl EncodeGaugeValue) -> fmt::Result {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(value)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Instant, SystemTime, UNIX_EPOCH};

    use prometheus_client::encoding::text::encode;

    use super::*;

    fn read(name: &str) -> f64 {
        let mut text = String::new();
        encode(&mut text, &process_registry()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is missing in {text}")).parse().unwrap()
    }

    #[test]
    fn what_a_process_uses_shows() {
        let open = read("process_open_fds");
        // Other tests open and close files meanwhile, but not as many.
        let files: Vec<_> = (0..200).map(|_| File::open("/proc/self/stat").unwrap()).collect();
        assert!(read("process_open_fds") >= open + 100.0);
        assert!(read("process_max_fds") >= open);
        drop(files);

        let resident = read("process_resident_memory_bytes");
        let memory = vec![1u8; 64 << 20];
        assert!(read("process_resident_memory_bytes") >= resident + f64::from(32 << 20));
        assert!(read("process_virtual_memory_bytes") >= read("process_resident_memory_bytes"));
        drop(memory);

        let (used, began) = (read("process_cpu_seconds_total"), Instant::now());
        while read("process_cpu_seconds_total") <= used {
            assert!(began.elapsed().as_secs() < 60, "no CPU time was counted");
        }
        assert!(read("process_threads") >= 1.0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - read("process_start_time_seconds");
        assert!((-2.0..3600.0).contains(&age), "started {age} s ago");
    }
}
