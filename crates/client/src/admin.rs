//! Requests without a key: lines that are the same in the meta and the text protocol.

use crate::connection::Connection;
use crate::error::Failure;
use crate::message::Encoding;
use crate::meta::{refusal, time};
use crate::packet::{self, AdminCommand};

/// Names and values.
pub type Stats = Vec<(String, String)>;

/// Invalidates all items after `delay` seconds.
///
/// # Errors
/// The server fails or refuses, as for the other functions.
pub fn flush(connection: &mut Connection, delay: u32) -> Result<(), Failure> {
    if connection.encoding() == Encoding::Binary {
        connection.send([&packet::order(AdminCommand::Flush(delay))])?;
        return connection.packet().map(|_| ());
    }
    done(connection, &format!("flush_all {}", time(delay.into())))
}

/// Sets the server's log verbosity.
pub fn verbosity(connection: &mut Connection, level: u32) -> Result<(), Failure> {
    if connection.encoding() == Encoding::Binary {
        // memcached does not know this packet, which other servers have, and waits for more bytes.
        return Err(Failure::Refused("memcached has no binary command for it".into()));
    }
    done(connection, &format!("verbosity {level}"))
}

/// Returns the server's version.
pub fn version(connection: &mut Connection) -> Result<String, Failure> {
    if connection.encoding() == Encoding::Binary {
        connection.send([&packet::order(AdminCommand::Version)])?;
        return connection.packet().map(|(_, version)| text(version));
    }
    connection.send([b"version\r\n"])?;
    let line = connection.line()?;
    refusal(&line)?;
    let version = line.strip_prefix("VERSION ");
    version.map(Into::into).ok_or_else(|| Failure::protocol(line.as_bytes()))
}

/// Returns the statistics of a topic, which may be empty.
pub fn stats(connection: &mut Connection, topic: &str) -> Result<Stats, Failure> {
    let mut stats = Stats::new();
    if connection.encoding() == Encoding::Binary {
        connection.send([&packet::order(AdminCommand::Stats(topic))])?;
        loop {
            let (name, value) = connection.packet()?;
            if name.is_empty() {
                return Ok(stats);
            }
            stats.push((text(name), text(value)));
        }
    }
    stat_lines(connection, topic, "STAT ", |name, value| {
        stats.push((text(name.into()), text(value.into())))
    })?;
    Ok(stats)
}

/// Returns the keys of a size class, as far as the server lists them.
///
/// # Errors
/// The server refuses, as over the binary protocol, the connection breaks, or it takes too long.
pub fn keys(connection: &mut Connection, class: u32) -> Result<Vec<Vec<u8>>, Failure> {
    if connection.encoding() == Encoding::Binary {
        return Err(Failure::Refused("the binary protocol does not list keys".into()));
    }
    let mut keys = Vec::new();
    stat_lines(connection, &format!("cachedump {class} 0"), "ITEM ", |key, _| keys.push(key.to_vec()))?;
    Ok(keys)
}

/// Requests statistics by text, and splits each line at its first space.
fn stat_lines(
    connection: &mut Connection,
    topic: &str,
    word: &str,
    mut take: impl FnMut(&[u8], &[u8]),
) -> Result<(), Failure> {
    connection.send([format!("stats {topic}").trim_end().as_bytes(), b"\r\n"])?;
    loop {
        let line = connection.line_bytes()?;
        if let Some(stat) = line.strip_prefix(word.as_bytes()) {
            let end = memchr::memchr(b' ', stat).unwrap_or(stat.len());
            take(&stat[..end], stat.get(end + 1..).unwrap_or_default());
            continue;
        }
        refusal(&String::from_utf8_lossy(&line))?;
        if !matches!(&line[..], b"END" | b"RESET") {
            return Err(Failure::protocol(&line));
        }
        return Ok(());
    }
}

/// Runs a command that the server answers with `OK`.
fn done(connection: &mut Connection, line: &str) -> Result<(), Failure> {
    connection.send([line.as_bytes(), b"\r\n"])?;
    let answered = connection.line()?;
    refusal(&answered)?;
    if answered == "OK" { Ok(()) } else { Err(Failure::protocol(answered.as_bytes())) }
}

fn text(said: Vec<u8>) -> String {
    String::from_utf8_lossy(&said).into_owned()
}
