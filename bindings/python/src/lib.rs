//! The wheel `fabcache`: the client library for Python.
//!
//! Here is what is asked for often; the rest, and what has pymemcache's names, is Python over it (`python/fabcache`). Bad input
//! raises, and never panics. Python's lock is given up wherever a call may wait.

mod client;
mod errors;
mod fork;
mod multiget;
mod numbers;
mod options;
mod rendezvous;
mod request;
mod settings;
mod value;

use pyo3::prelude::*;

/// Python calls this in the child after a fork.
#[pyfunction]
fn forked() {
    fork::note_fork();
}

/// What Python's part of the package is made of.
#[pymodule]
fn _fabcache(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<client::BaseClient>()?;
    module.add_class::<request::Request>()?;
    module.add_class::<request::Wakeups>()?;
    module.add_class::<value::Value>()?;
    module.add_function(wrap_pyfunction!(forked, module)?)?;
    module.add_function(wrap_pyfunction!(rendezvous::murmur3_32, module)?)?;
    module.add_function(wrap_pyfunction!(rendezvous::rendezvous_score, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
