//! Whatever other PEs write into the memory of a link between two PEs, at any time: it breaks the link, or is bytes. The
//! ends access nothing else, and a link whose memory only they write passes all bytes, and restarts.
#![no_main]

#[path = "../../crates/transport/tests/openshmem/pair.rs"]
#[allow(dead_code, reason = "it is part of tests, too")]
mod pair;

use std::sync::LazyLock;

use fabcache_shmem::local::LocalJob;
use libfuzzer_sys::fuzz_target;
use pair::Pair;

/// Its memory stays allocated.
static JOB: LazyLock<LocalJob> = LazyLock::new(|| LocalJob::new(2, Pair::plan(2).bytes()));

fuzz_target!(|data: (Option<u64>, Vec<(u8, u64, Vec<u8>)>)| {
    let (seed, steps) = data;
    for pe in 0..2 {
        JOB.memory(pe).zero(0, JOB.memory(pe).len());
    }
    let mut pair = Pair::new(&JOB, Pair::plan(2), 1);
    if let Some(seed) = seed {
        pair.interleave(seed);
    }
    let mut is_honest = true;
    for (what, choice, bytes) in steps {
        let step = u64::from(what & 15);
        if what < 160 {
            pair.act(step, choice);
        } else {
            is_honest = false;
            pair.harm(usize::from(what >> 4 & 1), step, choice, &bytes);
        }
    }
    if is_honest {
        pair.finish();
    } else {
        pair.settle();
    }
});
