//! Times, versions and amounts, as Python gives them.

use std::borrow::Cow;

use fabcache_client::Ttl;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString};

use crate::errors::{NO_COMMAND, client_error, illegal};
use crate::settings::Settings;

/// What servers say to times and numbers that they cannot take.
pub const NO_EXPTIME: &str = "invalid exptime argument";
pub const NO_DELTA: &str = "invalid numeric delta argument";

/// When an item expires, as the protocol has it; none if servers cannot take the number.
pub struct Expire(Option<Ttl>);

impl Expire {
    /// It does not.
    pub const NEVER: Expire = Expire(Some(Ttl::NEVER));

    /// The time, or what a server says to it.
    pub fn ttl(self, py: Python<'_>, refusal: &str) -> PyResult<Ttl> {
        self.0.ok_or_else(|| client_error(py, refusal))
    }

    /// The same, but without an error if no answer is expected.
    pub fn ttl_or(self, py: Python<'_>, refusal: &str, noreply: bool) -> PyResult<Option<Ttl>> {
        if noreply { Ok(self.0) } else { self.ttl(py, refusal).map(Some) }
    }
}

impl<'py> FromPyObject<'_, 'py> for Expire {
    type Error = PyErr;

    fn extract(expire: Borrowed<'_, 'py, PyAny>) -> PyResult<Expire> {
        Ok(Expire(integer::<i64>(&expire, "expire")?.map(Ttl::exact)))
    }
}

/// A number that the caller calls `name`; none if it is too large or too small.
pub fn integer<'py, N>(value: &Bound<'py, PyAny>, name: &str) -> PyResult<Option<N>>
where
    N: for<'a> FromPyObject<'a, 'py>,
{
    if !value.is_instance_of::<PyInt>() {
        let shown = value.repr()?;
        return Err(illegal(format!("{name} must be integer, got bad value: {shown}")));
    }
    Ok(value.extract::<N>().ok())
}

/// A version to compare with: a number, or its digits.
pub fn cas_number(cas: &Bound<'_, PyAny>, settings: &Settings) -> PyResult<u64> {
    let py = cas.py();
    let digits: Cow<'_, [u8]> = if let Ok(bytes) = cas.cast::<PyBytes>() {
        bytes.as_bytes().into()
    } else if cas.is_instance_of::<PyInt>() || cas.is_instance_of::<PyString>() {
        let encoded = settings.encoded(&cas.str()?)?.ok_or_else(|| match cas.repr() {
            Ok(shown) => illegal(format!("non-ASCII cas value: {shown}")),
            Err(error) => error,
        })?;
        encoded.as_bytes().to_vec().into()
    } else {
        let shown = cas.repr()?;
        return Err(illegal(format!("cas must be integer, string, or bytes, got bad value: {shown}")));
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        let shown = PyBytes::new(py, &digits).repr()?;
        return Err(illegal(format!("cas must only contain values in 0-9, got bad value: {shown}")));
    }
    let number = std::str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| client_error(py, NO_COMMAND))
}
