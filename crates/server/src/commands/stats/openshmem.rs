//! The statistics of an OpenSHMEM job.

use std::sync::atomic::Ordering;

use super::Report;
use crate::openshmem::{OpenShmemSettings, PROVIDER, Pes};

/// Reports this PE's part in its job, for `stats fabcache`.
pub fn own(pes: &Pes, mapped_reads: u64, report: &mut Report<'_>) {
    let shape = pes.plan.shape();
    for (name, value) in [
        ("openshmem_pe", pes.own() as u64),
        ("openshmem_pes", pes.names().len() as u64),
        ("openshmem_heap_bytes", pes.plan.bytes()),
        ("openshmem_link_bytes", shape.bytes_for_each_pe() * pes.names().len() as u64),
        ("openshmem_requests", pes.forwarded.load(Ordering::Relaxed) + mapped_reads),
        ("openshmem_one_sided_reads", pes.direct_reads.load(Ordering::Relaxed) + mapped_reads),
        ("openshmem_unanswered", pes.unanswered.load(Ordering::Relaxed)),
    ] {
        report.stat(name, value);
    }
    for (pe, name) in pes.names().iter().enumerate() {
        report.stat(&format!("openshmem_pe:{pe}:name"), name);
        report.stat(&format!("openshmem_pe:{pe}:state"), pes.state_of(pe));
    }
}

/// Reports the options, for `stats settings`.
pub fn settings(settings: &OpenShmemSettings, report: &mut Report<'_>) {
    report.stat("fabric", PROVIDER);
    report.stat("openshmem_slots", settings.shape.slots);
    report.stat("openshmem_slot_size", settings.shape.slot_bytes);
    report.stat("openshmem_buffer", settings.shape.buffer_bytes);
    report.stat("openshmem_mutex", if settings.shape.has_mutexes { "yes" } else { "no" });
    report.stat("openshmem_offload", if settings.offload { "yes" } else { "no" });
    report.stat("openshmem_threads", settings.threads);
    let one_sided = match settings.one_sided {
        None => "auto",
        Some(true) => "yes",
        Some(false) => "no",
    };
    report.stat("openshmem_one_sided", one_sided);
    report.stat("openshmem_timeout_ms", settings.timeout.as_millis());
    report.stat("openshmem_sleep_ms", settings.sleep_max.as_millis());
}
