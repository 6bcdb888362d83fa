//! Shared by the Rust client programs: the servers' addresses and counted assertions.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// The longest value that every server accepts: it leaves room only for the item's overhead.
pub const NEAR_LIMIT: usize = 1024 * 1024 - 1024;

/// One byte more than a whole item may take.
pub const TOO_LARGE: usize = 1024 * 1024 + 1;

/// Two seconds is the shortest time to live that cannot end at the very next tick of the clock.
pub const SHORT_TTL_S: u32 = 2;

/// The servers' addresses, and their expected behaviour.
pub struct Servers {
    /// `host:port` of TCP and UDP.
    pub address: String,
    /// Path of the Unix socket, which belongs to another server.
    pub socket: String,
    /// The memcached release whose answers are expected where releases differ.
    pub behaviour: (u32, u32, u32),
}

impl Servers {
    /// Reads the environment that the runner sets.
    pub fn from_env() -> Self {
        let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
        let release = variable("SERVER_BEHAVIOUR");
        let mut parts = release.split('.').map(|part| part.parse().expect("a release is three numbers"));
        let mut part = || parts.next().expect("a release is three numbers");
        Self {
            address: format!("{}:{}", variable("SERVER_HOST"), variable("SERVER_PORT")),
            socket: variable("SERVER_SOCKET"),
            behaviour: (part(), part(), part()),
        }
    }
}

/// Counts assertions, and ends the program at the first that fails.
#[derive(Default)]
pub struct Checks {
    passed: Cell<u32>,
    context: RefCell<String>,
}

impl Checks {
    /// Names the mode (protocol, transport) that the next checks run in.
    pub fn within(&self, name: &str) {
        *self.context.borrow_mut() = if name.is_empty() { String::new() } else { format!("{name}: ") };
    }

    /// Checks that both values are equal.
    #[track_caller]
    pub fn equal<A: PartialEq<B> + Debug, B: Debug>(&self, what: &str, actual: A, expected: B) {
        if actual != expected {
            self.fail(&format!("{what}: expected {}, got {}", brief(&expected), brief(&actual)));
        }
        self.passed.set(self.passed.get() + 1);
    }

    /// Checks a condition.
    pub fn holds(&self, what: &str, condition: bool) {
        self.equal(what, condition, true);
    }

    /// Checks that a call succeeded, and returns its result.
    pub fn ok<T, E: Debug>(&self, what: &str, result: Result<T, E>) -> T {
        self.passed.set(self.passed.get() + 1);
        result.unwrap_or_else(|error| self.fail(&format!("{what}: {error:?}")))
    }

    /// Checks that a call failed, and that its error contains `text`.
    pub fn fails<T: Debug, E: Debug>(&self, what: &str, text: &str, result: Result<T, E>) {
        match result {
            Ok(value) => self.fail(&format!("{what}: expected an error, got {}", brief(&value))),
            Err(error) => {
                let message = format!("{error:?}");
                if !message.contains(text) {
                    self.fail(&format!("{what}: expected an error that says {text}, got {message}"));
                }
                self.passed.set(self.passed.get() + 1);
            }
        }
    }

    /// Polls until a condition holds that a server's background threads establish.
    pub fn eventually(&self, what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while !condition() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.holds(what, condition());
    }

    /// Prints the line that the runner reads.
    pub fn finish(&self, client: &str) {
        println!("{client} {}: {} checks passed", locked_version(client), self.passed.get());
    }

    fn fail(&self, message: &str) -> ! {
        eprintln!("FAILED after {} checks: {}{message}", self.passed.get(), self.context.borrow());
        std::process::exit(1)
    }
}

/// Sleeps until items stored for `SHORT_TTL_S` have expired.
pub fn wait_for_expiry() {
    std::thread::sleep(Duration::from_secs(SHORT_TTL_S.into()) + Duration::from_millis(200));
}

/// Returns every byte value, repeatedly.
pub fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|n| n as u8).collect()
}

fn locked_version(package: &str) -> &'static str {
    include_str!("../Cargo.lock")
        .split("[[package]]")
        .find(|entry| entry.contains(&format!("name = \"{package}\"\n")))
        .and_then(|entry| entry.split("version = \"").nth(1)?.split('"').next())
        .unwrap_or("unknown")
}

fn brief(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}... ({} bytes)", &text[..end], text.len()),
        None => text,
    }
}
