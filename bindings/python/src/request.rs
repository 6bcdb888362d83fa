//! Calls that do not wait, and what wakes who awaits them.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use std::os::fd::{AsRawFd, OwnedFd};

use fabcache_client::{Error, Outcome};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

use crate::errors::{forked, raised};
use crate::fork::ForkGuarded;
use crate::settings::{Settings, with_cas};

/// What a request's `wait` returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// The value that was found.
    Value,
    /// With its version.
    ValueAndCas,
    /// That it is stored.
    Stored,
}

/// An operation that was asked for, and that nobody need wait for: `test()` tells whether it is over, `wait()` waits for that and
/// returns what it came to, and so does `await`. One that is dropped is done all the same.
#[pyclass(frozen, module = "fabcache._fabcache")]
pub struct Request {
    /// Locked by who does not hold Python's lock, as it may be held while the server is waited for; or not waited for.
    state: ForkGuarded<Mutex<State>>,
    settings: Arc<Settings>,
    /// As the caller gave it.
    #[pyo3(get)]
    key: Py<PyAny>,
    shown: Shown,
    default: Py<PyAny>,
}

#[expect(clippy::large_enum_variant, reason = "it lies in an object of its own on the heap already")]
enum State {
    InFlight(fabcache_client::Request),
    FinishedOperation(Arc<FinishedOperation>),
}

struct FinishedOperation {
    value: Vec<u8>,
    result: Result<Outcome, Error>,
}

impl State {
    fn end(&mut self, completed: fabcache_client::CompletedRequest) -> Arc<FinishedOperation> {
        let over = Arc::new(FinishedOperation { value: completed.value, result: completed.result });
        *self = State::FinishedOperation(Arc::clone(&over));
        over
    }

    fn is_over(&mut self) -> bool {
        match self {
            State::InFlight(request) => request.test(),
            State::FinishedOperation(_) => true,
        }
    }
}

impl Request {
    /// For an operation that was asked for.
    pub fn new(
        request: fabcache_client::Request,
        settings: &Arc<Settings>,
        key: &Bound<'_, PyAny>,
        shown: Shown,
        default: Py<PyAny>,
    ) -> Request {
        Request {
            state: ForkGuarded::new(Mutex::new(State::InFlight(request))),
            settings: Arc::clone(settings),
            key: key.clone().unbind(),
            shown,
            default,
        }
    }

    fn state(&self) -> PyResult<&Mutex<State>> {
        self.state.get().ok_or_else(forked)
    }

    fn show<'py>(&self, py: Python<'py>, over: &FinishedOperation) -> PyResult<Bound<'py, PyAny>> {
        match &over.result {
            Err(error) => Err(raised(py, error)),
            Ok(Outcome::Stored) => Ok(PyBool::new(py, true).to_owned().into_any()),
            Ok(Outcome::NotFound) => Ok(self.default.bind(py).clone()),
            Ok(Outcome::Found { flags, cas }) => {
                let value = self.settings.serde.deserialize(self.key.bind(py), &over.value, *flags)?;
                if self.shown == Shown::ValueAndCas { with_cas(value, *cas) } else { Ok(value) }
            }
        }
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no thread panics while it looks at a request")
}

#[pymethods]
impl Request {
    /// Whether the operation is over; makes progress with it.
    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        let state = self.state()?;
        // While another thread waits for it, it is not.
        Ok(py.detach(|| state.try_lock().is_ok_and(|mut state| state.is_over())))
    }

    /// Wait until the operation is over, and return what it came to: for a get the value, or the default; for a set True.
    /// Raises what the blocking call would.
    fn wait<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let state = self.state()?;
        let over = py.detach(|| {
            let mut state = locked(state);
            match &mut *state {
                State::FinishedOperation(over) => Arc::clone(over),
                State::InFlight(request) => {
                    let completed = request.wait();
                    state.end(completed)
                }
            }
        });
        self.show(py, &over)
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        py.import("fabcache.aio")?.call_method1("_awaited", (slf,))?.call_method0("__await__")
    }
}

/// Notifies one event loop of completed requests, through a descriptor that it watches. The waking thread may be any,
/// and takes no lock of Python's.
#[pyclass(frozen, module = "fabcache._fabcache")]
pub struct Wakeups {
    shared: Arc<Shared>,
}

struct Shared {
    doorbell: OwnedFd,
    /// The numbers of those that may be over.
    woken: Mutex<Vec<u64>>,
}

struct Number {
    shared: Arc<Shared>,
    number: u64,
}

impl Shared {
    fn woken(&self) -> MutexGuard<'_, Vec<u64>> {
        self.woken.lock().expect("no thread panics while it notes a number")
    }
}

impl Wake for Number {
    fn wake(self: Arc<Self>) {
        let mut woken = self.shared.woken();
        woken.push(self.number);
        if woken.len() == 1 {
            // It cannot be full: it is rung once for all that are looked at together.
            let _ = write(&self.shared.doorbell, &1u64.to_ne_bytes());
        }
    }
}

#[pymethods]
impl Wakeups {
    #[new]
    fn new() -> PyResult<Wakeups> {
        let doorbell =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(std::io::Error::from)?;
        Ok(Wakeups { shared: Arc::new(Shared { doorbell, woken: Mutex::default() }) })
    }

    /// The descriptor, which can be read when something is to be taken.
    fn fileno(&self) -> i32 {
        self.shared.doorbell.as_raw_fd()
    }

    /// Makes progress; whether the request is over. If not, its number is told when it may be.
    fn watch(&self, py: Python<'_>, request: &Bound<'_, Request>, number: u64) -> PyResult<bool> {
        let state = request.get().state()?;
        let waker = Waker::from(Arc::new(Number { shared: Arc::clone(&self.shared), number }));
        Ok(py.detach(|| {
            let mut state = locked(state);
            let State::InFlight(request) = &mut *state else { return true };
            match pin!(request).poll(&mut Context::from_waker(&waker)) {
                Poll::Pending => false,
                Poll::Ready(completed) => {
                    state.end(completed);
                    true
                }
            }
        }))
    }

    /// The numbers of requests that may be over.
    fn take(&self) -> PyResult<Vec<u64>> {
        let mut woken = self.shared.woken();
        match read(&self.shared.doorbell, &mut [0; 8]) {
            Ok(_) | Err(Errno::AGAIN) => Ok(std::mem::take(&mut *woken)),
            Err(error) => Err(std::io::Error::from(error).into()),
        }
    }
}
