//! Records the bytes of a client library call, and of the dummy's response.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use anyhow::{Context, Result, bail};
use fabcache_client::{Client, Options, Protocol, SharedMemory};
use fabcache_protocol::{Decoder, Limits};

use super::answers::{Answers, Shared, respond};

const READ_BYTES: usize = 64 << 10;

/// A call as it goes over a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCall {
    /// The client's bytes.
    pub request: Vec<u8>,
    /// The server's response.
    pub answer: Vec<u8>,
}

/// Records one call, on a dummy that stores a value of this item with this length.
///
/// # Errors
/// The call fails, or sends no request.
pub fn record_call(
    protocol: Protocol,
    (number, len): (u64, u32),
    call: impl FnOnce(&Client) -> Result<()>,
) -> Result<RecordedCall> {
    // Protocol detection on the first connection is not part of the call.
    let protocol = if protocol == Protocol::Auto { Protocol::Meta } else { protocol };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    let address = format!("tcp://{}", listener.local_addr()?);
    let options = Options { protocol, shared_memory: SharedMemory::Never, ..Options::default() };
    let client = Client::new([address], options)?;
    std::thread::scope(|scope| {
        let listened = scope.spawn(|| listen(&listener.accept()?.0, number, len));
        let called = call(&client);
        // Without a request the listener would wait for ever.
        if called.is_err() && !listened.is_finished() {
            let _ = listener.local_addr().map(TcpStream::connect);
        }
        let recorded_call = listened.join().expect("no thread panics");
        called.and(recorded_call)
    })
}

fn listen(mut stream: &TcpStream, number: u64, len: u32) -> Result<RecordedCall> {
    let shared = Shared::new(None, Default::default());
    shared.remember(number, len);
    let mut request = Vec::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            bail!("the client sent no request");
        }
        request.extend_from_slice(&buffer[..count]);
        if let Some(answer) = answer(&shared, &request) {
            stream.write_all(&answer)?;
            return Ok(RecordedCall { request, answer });
        }
    }
}

/// Returns the response, if the request is complete.
fn answer(shared: &Shared, request: &[u8]) -> Option<Vec<u8>> {
    let mut decoder = Decoder::new(None, Limits { inline_value_max: usize::MAX });
    let (mut answers, mut answer) = (Answers::new(), Vec::new());
    let used = respond(shared, &mut decoder, &mut answers, request);
    answers.output.take(&shared.items, &mut answer);
    (used == request.len() && !answer.is_empty()).then_some(answer)
}

#[cfg(test)]
mod tests {
    use fabcache_client::Ttl;

    use super::*;
    use crate::items::Items;

    #[test]
    fn calls_are_recorded() {
        let items = Items::new(20).expect("a length");
        let (mut key, mut value) = (Vec::new(), Vec::new());
        items.key(7, &mut key);
        for len in [64usize, 100_000] {
            items.value(7, len, &mut value);
            let heard = |protocol, sets: bool| {
                let call = |client: &Client| {
                    if sets {
                        client.set(&key, &value, Ttl::NEVER)?;
                    } else {
                        assert_eq!(client.get(&key)?.map(|item| item.value).as_deref(), Some(&*value));
                    }
                    Ok(())
                };
                record_call(protocol, (7, len as u32), call).expect("an answer")
            };
            let text = heard(Protocol::Text, false);
            assert_eq!(text.request, [b"gets ", &*key, b"\r\n"].concat());
            let head = format!("VALUE bench-00000000000007 0 {len} 1\r\n");
            assert_eq!(text.answer, [head.as_bytes(), &value, b"\r\nEND\r\n"].concat());
            let meta = heard(Protocol::Auto, true);
            assert!(meta.request.starts_with(b"ms bench-") && meta.request.ends_with(b"\r\n"));
            assert_eq!(meta.answer, b"HD\r\n");
            let binary = heard(Protocol::Binary, true);
            assert_eq!((binary.request[0], binary.answer[0]), (0x80, 0x81));
        }
        assert!(record_call(Protocol::Meta, (7, 1), |_| bail!("it was not made")).is_err());
    }
}
