//! What a server is asked that is not about a key.
//!
//! It is the same in the meta and the text protocol: lines.

use crate::connection::Connection;
use crate::error::Failure;
use crate::input::protocol;
use crate::message::Form;
use crate::meta::refusal;
use crate::packet::{self, Order};

/// Names and values.
pub type Stats = Vec<(String, String)>;

/// Forgets everything, after `delay` seconds.
///
/// # Errors
/// The server fails or refuses. So it is for the others.
pub fn flush(connection: &mut Connection, delay: u32) -> Result<(), Failure> {
    if connection.form() == Form::Binary {
        connection.send([&packet::order(Order::Flush(delay))])?;
        return connection.packet().map(|_| ());
    }
    done(connection, &format!("flush_all {delay}"))
}

/// Logs so much from now on.
pub fn verbosity(connection: &mut Connection, level: u32) -> Result<(), Failure> {
    if connection.form() == Form::Binary {
        // The packet that others have for it is unknown to memcached, which then waits for what does not come.
        return Err(Failure::Refused("memcached knows no packet that asks for it".into()));
    }
    done(connection, &format!("verbosity {level}"))
}

/// The server's version.
pub fn version(connection: &mut Connection) -> Result<String, Failure> {
    if connection.form() == Form::Binary {
        connection.send([&packet::order(Order::Version)])?;
        return connection.packet().map(|(_, version)| text(version));
    }
    connection.send([b"version\r\n"])?;
    let line = connection.line()?;
    refusal(&line)?;
    let version = line.strip_prefix("VERSION ");
    version.map(Into::into).ok_or_else(|| protocol(line.as_bytes()))
}

/// Statistics of a topic, which may be empty.
pub fn stats(connection: &mut Connection, topic: &str) -> Result<Stats, Failure> {
    let mut stats = Stats::new();
    if connection.form() == Form::Binary {
        connection.send([&packet::order(Order::Stats(topic))])?;
        loop {
            let (name, value) = connection.packet()?;
            if name.is_empty() {
                return Ok(stats);
            }
            stats.push((text(name), text(value)));
        }
    }
    connection.send([format!("stats {topic}").trim_end().as_bytes(), b"\r\n"])?;
    loop {
        let line = connection.line()?;
        refusal(&line)?;
        // An item of `cachedump` is told of as a statistic is, but for this word.
        let stat = line.strip_prefix("STAT ").or_else(|| line.strip_prefix("ITEM "));
        match stat.map(|stat| stat.split_once(' ').unwrap_or((stat, ""))) {
            Some((name, value)) => stats.push((name.into(), value.into())),
            None if matches!(line.as_str(), "END" | "RESET") => return Ok(stats),
            None => return Err(protocol(line.as_bytes())),
        }
    }
}

/// Has the server do what a line is answered with `OK` for.
fn done(connection: &mut Connection, line: &str) -> Result<(), Failure> {
    connection.send([line.as_bytes(), b"\r\n"])?;
    let answered = connection.line()?;
    refusal(&answered)?;
    if answered == "OK" { Ok(()) } else { Err(protocol(answered.as_bytes())) }
}

fn text(said: Vec<u8>) -> String {
    String::from_utf8_lossy(&said).into_owned()
}
