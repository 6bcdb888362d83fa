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
                &[
                    "increments_count",
                    "others_go_on_while",
                    "killed_pe",
                    "starts::",
                    "idle_pes",
                    "direct::",
                    "while_the_index",
                    LONG_VALUES,
                ],
                ONCE,
            ),
        ),
        ("4 PEs over tcp", Part::Without(&[LONG_VALUES], SLOW)),
        ("8 PEs over tcp", Part::Without(&[LONG_VALUES], SLOW)),
    ],
}];

const LONG_VALUES: &str = "while_values_are_long";
const SLOW: &str = "long values may take so long over tcp that requests end without an answer";
const ONCE: &str = "runs with 4 PEs, and takes long, does not depend on transports, or needs shared memory";
