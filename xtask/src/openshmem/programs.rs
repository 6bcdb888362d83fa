//! The test programs that need OpenSHMEM, and what is left out in which arrangement.

use crate::test_programs::Test;

/// The test programs; their ignored tests are run, in each arrangement.
pub const TESTS: &[Test] = &[Test { package: "fabcache-client", name: "openshmem", parts: &[] }];
