//! The test programs that need a fabric, and what is left out where.

use crate::test_programs::{Part, Test};

/// The test programs; their ignored tests are run, with each provider of this machine and in each arrangement of the virtual
/// machine.
pub const TESTS: &[Test] = &[
    Test { package: "fabcache-fabric", name: "providers", parts: &[("looped", Part::None(ONCE))] },
    Test {
        package: "fabcache-transport",
        name: "fabric",
        parts: &[("shm", Part::Without(&["client_killed_while"], OF_SHM)), ("crossing", Part::None(ONCE))],
    },
    Test { package: "fabcache-server", name: "links", parts: &[("crossing", Part::None(ONCE))] },
    Test {
        package: "fabcache-client",
        name: "fabric",
        parts: &[
            ("shm", Part::Without(&["killed_clients"], OF_SHM)),
            ("looped", Part::Only(&["fabric_and_tcp_calls", "killed_clients", "client_without_memlock"])),
            ("crossing", Part::Only(&["stopped_server", "killed_server", "link_going_down"])),
        ],
    },
    Test {
        package: "fabcache-client",
        name: "fabric_registered",
        parts: &[("looped", Part::Only(&["values_of_all_lengths"])), ("crossing", Part::None(ONCE))],
    },
    Test {
        package: "fabcache-client",
        name: "fabric_torture",
        parts: &[("looped", Part::None(ONCE)), ("crossing", Part::Without(&["values_are_long"], SLOW))],
    },
    Test { package: "fabcache-client", name: "fabric_hostile", parts: HEAVY },
    Test { package: "fabcache-client", name: "fabric_amounts", parts: HEAVY },
    Test {
        package: "fabcache-cli",
        name: "fabric",
        parts: &[
            ("looped", Part::Without(&["providers_are_listed", "requirements_that_nothing_meets"], LISTED)),
            ("crossing", Part::None(ONCE)),
        ],
    },
];

/// The parts of programs that test large amounts and hostile peers.
const HEAVY: &[(&str, Part)] = &[
    (
        "shm",
        Part::None(
            "two ends in one process write to each other's former memory, and a killed process may hold locks",
        ),
    ),
    ("looped", Part::None(SLOW)),
    ("crossing", Part::None(SLOW)),
];

const LISTED: &str = "a listing opens every provider in a process of its own, which takes the emulator half a minute; the tests \
                      of fabcache-fabric show that verbs opens, signals completions and reads one-sided";
const SLOW: &str = "takes minutes in the emulator";
const ONCE: &str = "runs in the other arrangement";
const OF_SHM: &str = "a client that is killed or stopped while it sends, reads or receives may hold a lock of libfabric 1.17 \
                      that the server waits for, whose calls then never return";
