//! Metrics of the process, under the names of Prometheus' client libraries.

use std::fs;

use metrics::gauge;

/// Updates them, if `/proc` exists.
#[expect(clippy::cast_precision_loss, reason = "a gauge need not be exact")]
pub(super) fn update() -> Option<()> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name may hold blanks and parentheses.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<f64> = (fields.split_whitespace().skip(1))
        .map_while(|field| field.parse().ok())
        .collect();
    // Numbers from the fourth field on, as proc(5) counts them.
    let field = |number: usize| fields.get(number - 4).copied();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let page = rustix::param::page_size() as f64;
    gauge!("process_cpu_seconds_total").set((field(14)? + field(15)?) / ticks);
    gauge!("process_threads").set(field(20)?);
    gauge!("process_virtual_memory_bytes").set(field(23)?);
    gauge!("process_resident_memory_bytes").set(field(24)? * page);
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let mut lines = stat.lines();
    let booted = lines.find_map(|line| line.strip_prefix("btime ")?.parse::<f64>().ok())?;
    gauge!("process_start_time_seconds").set(booted + field(22)? / ticks);
    gauge!("process_open_fds").set(fs::read_dir("/proc/self/fd").ok()?.count() as f64);
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    gauge!("process_max_fds").set(limits.current.map_or(f64::INFINITY, |limit| limit as f64));
    Some(())
}
