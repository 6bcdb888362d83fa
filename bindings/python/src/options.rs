//! A client's server address and transport options.

use std::time::Duration;

use fabcache_client::{Credentials, Fabric, FabricMode, Options, Protocol, SharedMemory};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A timeout that never expires.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The arguments about the fabric: the mode, provider, interface, and whether TCP will do instead.
pub type FabricGiven = (String, Option<String>, Option<String>, bool);

/// The client library's options, made of Python's arguments. `login` is a user's name and password.
///
/// # Errors
/// `ValueError`: one of them is no choice.
pub fn options(
    connect_timeout: Option<f64>,
    timeout: Option<f64>,
    shared_memory: Option<bool>,
    (mode, provider, interface, or_tcp): FabricGiven,
    protocol: &str,
    login: Option<(String, String)>,
) -> PyResult<Options> {
    let timeout_time = duration("timeout", timeout)?;
    Ok(Options {
        // The exchange on a new connection must finish in this time too.
        connect_timeout: duration("connect_timeout", connect_timeout.or(timeout))?,
        timeout: timeout_time,
        // pymemcache asks a server again at once.
        failures_max: u32::MAX,
        protocol: match protocol {
            "auto" => Protocol::Auto,
            "meta" => Protocol::Meta,
            "binary" => Protocol::Binary,
            "text" => Protocol::Text,
            other => {
                let why = format!("protocol is \"auto\", \"meta\", \"binary\" or \"text\", not {other:?}");
                return Err(PyValueError::new_err(why));
            }
        },
        credentials: login.map(|(user, password)| Credentials { user, password }),
        shared_memory: match shared_memory {
            None => SharedMemory::Offered,
            Some(true) => SharedMemory::Required,
            Some(false) => SharedMemory::Never,
        },
        fabric: Fabric {
            mode: match &*mode {
                "auto" => FabricMode::Auto,
                "one-sided" => FabricMode::OneSided,
                "request" => FabricMode::Request,
                other => {
                    let why = format!("fabric is \"auto\", \"one-sided\" or \"request\", not {other:?}");
                    return Err(PyValueError::new_err(why));
                }
            },
            provider,
            interface,
            or_tcp,
        },
        ..Options::default()
    })
}

fn duration(name: &str, seconds: Option<f64>) -> PyResult<Duration> {
    let Some(seconds) = seconds.filter(|seconds| *seconds != f64::INFINITY) else { return Ok(FOR_EVER) };
    let wrong =
        || PyValueError::new_err(format!("{name} is a number of seconds above 0, or None, not {seconds}"));
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    if duration.is_zero() { Err(wrong()) } else { Ok(duration.min(FOR_EVER)) }
}
