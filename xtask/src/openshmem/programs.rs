//! The test programs that need OpenSHMEM, and what is left out in which arrangement.

use crate::test_programs::{Part, Test};

/// The test programs; their ignored tests are run, in each arrangement.
pub const TESTS: &[Test] = &[Test {
    package: "fabcache-client",
    name: "openshmem",
    parts: &[
        ("2 PEs", Part::Only(&["alike::", "counters::", "shards::"])),
        (
            "2 PEs over tcp",
            Part::Without(
                &["increments_count", "others_go_on_while", "killed_pe", "starts::", "idle_pes", "direct::"],
                ONCE,
            ),
        ),
    ],
}];

const ONCE: &str = "runs with 4 PEs, and takes long, does not depend on transports, or needs shared memory";
