//! Many keys in one call.

use std::ops::Range;

use fabcache_client::{Client, Error, Found, Ttl};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::is_refusal;
use crate::settings::{KEY_BYTES_MAX, Settings};

/// Values that are on their way at once.
const WINDOW: usize = 64;

/// Keys, as they were given and as the server gets them.
pub struct Keys<'py> {
    given: Vec<Bound<'py, PyAny>>,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl<'py> Keys<'py> {
    /// Those of any iterable.
    pub fn new(settings: &Settings, keys: &Bound<'py, PyAny>) -> PyResult<Keys<'py>> {
        let mut all = Keys { given: Vec::new(), bytes: Vec::new(), ends: Vec::new() };
        for key in keys.try_iter()? {
            all.push(settings, key?)?;
        }
        Ok(all)
    }

    fn push(&mut self, settings: &Settings, key: Bound<'py, PyAny>) -> PyResult<()> {
        self.bytes.extend_from_slice(settings.key(&key, &mut [0; KEY_BYTES_MAX])?);
        self.ends.push(self.bytes.len());
        self.given.push(key);
        Ok(())
    }

    /// As they were given.
    pub fn given(&self) -> impl Iterator<Item = &Bound<'py, PyAny>> {
        self.given.iter()
    }

    /// As the server gets them.
    pub fn whole(&self) -> Vec<&[u8]> {
        slices(&self.bytes, &self.ends)
    }
}

fn slices<'a>(bytes: &'a [u8], ends: &[usize]) -> Vec<&'a [u8]> {
    let starts = std::iter::once(&0).chain(ends);
    starts.zip(ends).map(|(start, end)| &bytes[*start..*end]).collect()
}

/// What was found.
#[derive(Default)]
pub struct Read {
    /// All values, one behind the other.
    pub bytes: Vec<u8>,
    /// Of each key where its value is, with flags and version.
    pub items: Vec<Option<(Range<usize>, u32, u64)>>,
}

/// Reads all keys.
///
/// # Errors
/// The server fails.
pub fn read(cache: &Client, keys: &[&[u8]]) -> Result<Read, Error> {
    let mut read = Read { bytes: Vec::new(), items: vec![None; keys.len()] };
    let mut failed = cache.get_each(keys, |number, Found { value, flags, cas }| {
        let start = read.bytes.len();
        read.bytes.extend_from_slice(value);
        read.items[number] = Some((start..read.bytes.len(), flags, cas));
    })?;
    match failed.pop() {
        Some(error) => Err(error),
        None => Ok(read),
    }
}

/// Values to be stored.
pub struct Values<'py> {
    keys: Keys<'py>,
    values: Vec<(Bound<'py, PyBytes>, u32)>,
}

impl<'py> Values<'py> {
    /// Those of a dict, or of what has `items` as well.
    pub fn new(
        settings: &Settings,
        values: &Bound<'py, PyAny>,
        flags: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Values<'py>> {
        let mut all = Values {
            keys: Keys { given: Vec::new(), bytes: Vec::new(), ends: Vec::new() },
            values: Vec::new(),
        };
        for pair in values.call_method0("items")?.try_iter()? {
            let (key, value): (Bound<'py, PyAny>, Bound<'py, PyAny>) = pair?.extract()?;
            let value = settings.value(&key, &value, flags)?;
            all.keys.push(settings, key)?;
            all.values.push(value);
        }
        Ok(all)
    }

    /// Stores them, some at once. All were asked for when this returns, unless the server failed; the error is the first.
    /// With noreply, refusals are no errors: returns the keys whose values were refused.
    ///
    /// # Errors
    /// The server fails, or refuses one of them.
    pub fn store(
        &self,
        py: Python<'py>,
        cache: &Client,
        ttl: Ttl,
        noreply: bool,
    ) -> Result<Vec<&Bound<'py, PyAny>>, Error> {
        let values: Vec<(&[u8], u32)> =
            self.values.iter().map(|(value, flags)| (value.as_bytes(), *flags)).collect();
        let keys = self.keys.whole();
        let refused = py.detach(|| {
            let mut window: Vec<_> = (0..WINDOW.min(keys.len())).map(|_| cache.request()).collect();
            let (mut done, mut refused) = (Ok(()), Vec::new());
            let mut end = |number: usize, result: Result<(), Error>| match result {
                Err(error) if noreply && is_refusal(&error) => refused.push(number),
                Err(error) if done.is_ok() => done = Err(error),
                _ => {}
            };
            for (number, (key, (value, flags))) in keys.iter().zip(&values).enumerate() {
                let request = &mut window[number % WINDOW];
                if number >= WINDOW {
                    end(number - WINDOW, request.wait().result.map(|_| ()));
                }
                request.bset_with_flags(key, value, ttl, *flags);
            }
            for number in keys.len().saturating_sub(WINDOW)..keys.len() {
                end(number, window[number % WINDOW].wait().result.map(|_| ()));
            }
            done.map(|()| refused)
        })?;
        Ok(refused.into_iter().map(|number| &self.keys.given[number]).collect())
    }
}
