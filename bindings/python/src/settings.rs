//! A client's settings for keys and values, and their conversion.

use pyo3::exceptions::{PyTypeError, PyUnicodeEncodeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple};

use crate::errors::{NO_COMMAND, client_error, illegal};

/// Bytes of a key: memcached's limit.
pub const KEY_BYTES_MAX: usize = 250;

/// Flag of a value that is text, as pymemcache's serializers have it.
const FLAG_TEXT: u32 = 1 << 4;

/// A client's settings for keys and values.
pub struct Settings {
    pub serde: Serde,
    pub key_prefix: Py<PyBytes>,
    pub allow_unicode_keys: bool,
    pub default_noreply: bool,
    pub ignore_exc: bool,
    pub encoding: Py<PyString>,
}

/// How values become bytes, and are made of them again.
pub struct Serde {
    /// The caller's object.
    pub object: Py<PyAny>,
    serializer: Serializer,
}

enum Serializer {
    /// As they are.
    None,
    /// `fabcache.serde.PickleSerde`: bytes and text are dealt with here.
    Pickle { serialize: Py<PyAny>, deserialize: Py<PyAny> },
    /// The caller's.
    Custom { serialize: Py<PyAny>, deserialize: Py<PyAny> },
}

impl Serde {
    fn copy(&self, py: Python<'_>) -> Serde {
        let serializer = match &self.serializer {
            Serializer::None => Serializer::None,
            Serializer::Pickle { serialize, deserialize } => Serializer::Pickle {
                serialize: serialize.clone_ref(py),
                deserialize: deserialize.clone_ref(py),
            },
            Serializer::Custom { serialize, deserialize } => Serializer::Custom {
                serialize: serialize.clone_ref(py),
                deserialize: deserialize.clone_ref(py),
            },
        };
        Serde { object: self.object.clone_ref(py), serializer }
    }

    /// By an object with `serialize` and `deserialize`.
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Serde> {
        let class = object.get_type();
        let is_ours = |name: &str| -> PyResult<bool> {
            Ok(class.module()? == "fabcache.serde" && class.name()? == name)
        };
        let serialize = || PyResult::Ok(object.getattr("serialize")?.unbind());
        let deserialize = || PyResult::Ok(object.getattr("deserialize")?.unbind());
        let serializer = if is_ours("LegacyWrappingSerde")? && object.getattr("_does_nothing")?.is_truthy()? {
            Serializer::None
        } else if is_ours("PickleSerde")? {
            Serializer::Pickle { serialize: serialize()?, deserialize: deserialize()? }
        } else {
            Serializer::Custom { serialize: serialize()?, deserialize: deserialize()? }
        };
        Ok(Serde { object: object.clone().unbind(), serializer })
    }

    fn serialize<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyAny>, Flags<'py>)> {
        let py = value.py();
        let function = match &self.serializer {
            Serializer::None => return Ok((value.clone(), Flags::Known(0))),
            Serializer::Pickle { serialize, .. } => {
                if value.is_exact_instance_of::<PyBytes>() {
                    return Ok((value.clone(), Flags::Known(0)));
                }
                if value.is_exact_instance_of::<PyString>() {
                    let text = value.cast::<PyString>()?.to_str()?;
                    return Ok((PyBytes::new(py, text.as_bytes()).into_any(), Flags::Known(FLAG_TEXT)));
                }
                serialize
            }
            Serializer::Custom { serialize, .. } => serialize,
        };
        let (data, flags): (Bound<'py, PyAny>, Bound<'py, PyAny>) =
            function.bind(py).call1((key, value))?.extract()?;
        Ok((data, Flags::Given(flags)))
    }

    /// The value that was stored as these bytes.
    pub fn deserialize<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        data: &[u8],
        flags: u32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let function = match &self.serializer {
            Serializer::None => return Ok(PyBytes::new(py, data).into_any()),
            Serializer::Pickle { deserialize, .. } => {
                if flags == 0 {
                    return Ok(PyBytes::new(py, data).into_any());
                }
                if flags == FLAG_TEXT
                    && let Ok(text) = std::str::from_utf8(data)
                {
                    return Ok(PyString::new(py, text).into_any());
                }
                deserialize
            }
            Serializer::Custom { deserialize, .. } => deserialize,
        };
        function.bind(py).call1((key, PyBytes::new(py, data), flags))
    }
}

/// Flags of a value.
enum Flags<'py> {
    Known(u32),
    Given(Bound<'py, PyAny>),
}

/// Memory for a key with its prefix.
pub type KeyBuffer = [u8; KEY_BYTES_MAX];

impl Settings {
    /// Returns a copy.
    pub fn copy(&self, py: Python<'_>) -> Settings {
        Settings {
            serde: self.serde.copy(py),
            key_prefix: self.key_prefix.clone_ref(py),
            encoding: self.encoding.clone_ref(py),
            ..*self
        }
    }

    /// The bytes of a key: in the object itself, or in `buffer` behind the prefix.
    pub fn key<'a>(&self, key: &'a Bound<'_, PyAny>, buffer: &'a mut KeyBuffer) -> PyResult<&'a [u8]> {
        let prefix = self.key_prefix.as_bytes(key.py());
        self.prefixed_key(key, prefix, buffer)
    }

    /// The same with a prefix of the caller's.
    pub fn prefixed_key<'a>(
        &self,
        key: &'a Bound<'_, PyAny>,
        prefix: &[u8],
        buffer: &'a mut KeyBuffer,
    ) -> PyResult<&'a [u8]> {
        let bytes = self.key_bytes(key)?;
        let len = prefix.len() + bytes.len();
        if len > KEY_BYTES_MAX {
            return Err(wrong_key(key.py(), "Key is too long", prefix, bytes));
        }
        let whole = if prefix.is_empty() {
            bytes
        } else {
            buffer[..prefix.len()].copy_from_slice(prefix);
            buffer[prefix.len()..len].copy_from_slice(bytes);
            &buffer[..len]
        };
        let is_plain = |byte: &u8| *byte > b' ';
        if !whole.is_empty() && whole.iter().all(is_plain) {
            return Ok(whole);
        }
        let is_space = |byte: &u8| matches!(byte, b' ' | 0x09..=0x0d);
        if whole.is_empty() {
            Err(illegal("Key is empty".into()))
        } else if whole.iter().any(is_space) {
            Err(wrong_key(key.py(), "Key contains whitespace", b"", whole))
        } else if whole.contains(&0) {
            Err(wrong_key(key.py(), "Key contains null", b"", whole))
        } else {
            Ok(whole)
        }
    }

    fn key_bytes<'a>(&self, key: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
        if let Ok(text) = key.cast::<PyString>() {
            return match text.to_str() {
                Ok(text) if self.allow_unicode_keys || text.is_ascii() => Ok(text.as_bytes()),
                Err(error) if self.allow_unicode_keys => Err(error),
                _ => Err(illegal(format!("Non-ASCII key: {}", key.repr()?.to_cow()?))),
            };
        }
        match key.cast::<PyBytes>() {
            Ok(bytes) => Ok(bytes.as_bytes()),
            Err(_) => {
                Err(PyTypeError::new_err(format!("a key is str or bytes, not {}", key.get_type().name()?)))
            }
        }
    }

    /// The bytes of a value, and its flags; those given come before the serializer's.
    pub fn value<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        flags: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyBytes>, u32)> {
        let (data, serialized) = self.serde.serialize(key, value)?;
        let flags = match (flags, serialized) {
            (Some(given), _) => checked_flags(given)?,
            (None, Flags::Given(given)) => checked_flags(&given)?,
            (None, Flags::Known(flags)) => flags,
        };
        Ok((self.data(data)?, flags))
    }

    /// Values that are not bytes are stored as their text.
    fn data<'py>(&self, data: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let py = data.py();
        let data = match data.cast_into::<PyBytes>() {
            Ok(bytes) => return Ok(bytes),
            Err(error) => error.into_inner(),
        };
        let text = data.str()?;
        let encoding = self.encoding.bind(py);
        let encoded = text.call_method1("encode", (encoding,)).map_err(|error| {
            if error.is_instance_of::<PyUnicodeEncodeError>(py) {
                illegal(format!("Data values must be binary-safe: {}", error.value(py)))
            } else {
                error
            }
        })?;
        Ok(encoded.cast_into::<PyBytes>()?)
    }

    /// Text in the client's encoding; none if that has not all of its characters.
    pub fn encoded<'py>(&self, text: &Bound<'py, PyString>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let py = text.py();
        match text.call_method1("encode", (self.encoding.bind(py),)) {
            Ok(encoded) => Ok(Some(encoded.cast_into::<PyBytes>()?)),
            Err(error) if error.is_instance_of::<PyUnicodeEncodeError>(py) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the caller waits for the answer.
    pub fn noreply(&self, given: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        given.map_or(Ok(self.default_noreply), PyAnyMethods::is_truthy)
    }
}

#[cold]
fn wrong_key(py: Python<'_>, why: &str, prefix: &[u8], key: &[u8]) -> PyErr {
    let whole = PyBytes::new(py, &[prefix, key].concat());
    match whole.repr() {
        Ok(shown) => illegal(format!("{why}: {shown}")),
        Err(error) => error,
    }
}

fn checked_flags(flags: &Bound<'_, PyAny>) -> PyResult<u32> {
    let py = flags.py();
    flags.extract().map_err(|_| match flags.is_instance_of::<PyInt>() {
        true => client_error(py, NO_COMMAND),
        false => illegal(format!("flags must be integer, got bad value: {flags:?}")),
    })
}

/// The pair that `gets` returns.
pub fn with_cas<'py>(value: Bound<'py, PyAny>, cas: u64) -> PyResult<Bound<'py, PyAny>> {
    let py = value.py();
    let cas = PyBytes::new(py, cas.to_string().as_bytes());
    Ok(PyTuple::new(py, [value, cas.into_any()])?.into_any())
}
