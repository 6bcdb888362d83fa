//! Asking a server for the fabric, over its TCP connection.

use std::fmt::Write;
use std::io::{ErrorKind, IoSlice};
use std::net::IpAddr;
use std::str::{FromStr, SplitAsciiWhitespace};
use std::sync::Arc;
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fabcache_fabric::channel::{CHANNEL_VERSION, CREDITS_MAX, Terms};
use fabcache_fabric::{Domain, NAME_BYTES_MAX, ProviderRequirements, RemoteMemory, ip_of};
use fabcache_layout::checksum::{SECRET_BYTES, Secret};
use fabcache_layout::format::FORMAT_VERSION;
use fabcache_protocol::binary::RESPONSE;

use super::link::End;
use super::remote::RemoteReader;
use super::sockets::Sockets;
use super::stream::FabricStream;
use super::{domains, lingering_links};
use crate::bounds::KEPT_LINKS_MAX;
use crate::error::{AttachError, Failure};
use crate::fabric::region::Region;
use crate::item::Transport;
use crate::message::Encoding;
use crate::packet::{self, AdminCommand};
use crate::region_clock::{RegionClock, precise_monotonic_ns};
use crate::socket::{Socket, exchange, request_line};
use crate::stream::{Stream, Until};

/// A server's description of its endpoint.
#[derive(Debug, PartialEq, Eq)]
struct Offer {
    provider: String,
    protocol: u32,
    address_format: u32,
    is_one_sided: bool,
}

/// The server's grant to a client.
struct Granted {
    name: Vec<u8>,
    token: u64,
    credits: u16,
    clock_ns: u64,
    memory: RemoteMemory,
    secret: Secret,
    grace_ns: u64,
}

/// Asks for the fabric over an idle socket, in binary packets where the server speaks these. The agreed terms are
/// stored in `remote`.
///
/// If the server refuses, or this machine has no such fabric, the socket can be used as before.
///
/// # Errors
/// The socket broke, the deadline passed, the server's answer is invalid, or the fabric failed after the agreement.
pub fn attach(
    socket: &Socket,
    remote: &RemoteReader,
    deadline: Instant,
) -> Result<(Transport, FabricStream), AttachError> {
    let versions = format!("{CHANNEL_VERSION} {FORMAT_VERSION}");
    let line = request_words(socket, "hello", &versions, deadline)?;
    let Some(offer) = Offer::of(&line) else { return Err(AttachError::Refused(no_offer(line))) };
    let host = socket.socket.peer_addr()?.as_socket().map(|address| address.ip());
    let began = Instant::now();
    let end = match domain(&offer, &remote.options, host).and_then(|domain| new_end(&domain)) {
        Ok(end) => end,
        Err(UnsupportedHere(why)) => return Err(AttachError::Refused(why)),
    };
    // This time is not the server's: the first use of libfabric searches the whole machine for devices.
    let deadline = deadline + began.elapsed();
    let line = request_words(socket, "attach", &words(&end), deadline)?;
    if !line.starts_with("FABRIC ") {
        return Err(AttachError::Refused(not_attached(line, end.name())));
    }
    let arrived_ns = precise_monotonic_ns();
    let Granted { name, token, credits, clock_ns, memory, secret, grace_ns } =
        Granted::of(&line).ok_or_else(|| Failure::Protocol(UNSOUND.into()))?;
    let terms = Terms {
        own_token: end.token,
        peer_token: token,
        own_credits: end.credits(),
        peer_credits: credits,
        staging_bytes: end.staging().bytes,
        landing_bytes: end.landing().bytes,
    };
    terms.check().map_err(|unsound| Failure::Protocol(format!("{UNSOUND}: {unsound}")))?;
    let domain = Arc::clone(end.domain());
    let provider = domain.provider().name.clone();
    let one_sided = remote.reads(offer.is_one_sided && end.is_one_sided());
    if one_sided {
        let clock = RegionClock::answered(clock_ns, arrived_ns);
        let sockets = Sockets::new(&socket.socket, &name, memory);
        let region = Region { domain, bytes: memory.bytes, secret, clock, grace_ns, sockets };
        remote.set_region(region);
    }
    let stream = FabricStream::new(end, &name, terms, Arc::clone(&socket.socket));
    let stream = stream.map_err(|error| Failure::Broken(std::io::Error::other(error)))?;
    Ok((Transport::Fabric { provider, one_sided }, stream))
}

/// Why the endpoints that both sides agreed on are of no use.
#[derive(Debug, thiserror::Error)]
pub enum ProveError {
    /// The link failed.
    #[error("{0}")]
    Link(#[from] std::io::Error),
    /// No answer arrived in time. The text names the one cause that libfabric does not report.
    #[error(
        "nothing gets through to the server's end, and its answers do not come \
         (over ofi_rxm, FI_OFI_RXM_BUFFER_SIZE has to be the same at both ends)"
    )]
    Unreached,
    /// The server answered something else.
    #[error("invalid answer: {0}")]
    InvalidAnswer(String),
}

/// Sends a no-op over the fabric and waits for its answer, as an endpoint that was agreed on need not be reachable.
///
/// # Errors
/// See [`ProveError`].
pub fn prove(stream: &mut FabricStream, deadline: Instant) -> Result<(), ProveError> {
    const ASKED: &[u8] = b"mn\r\n";
    const ANSWER: &[u8] = b"MN\r\n";
    let (mut sent, mut answer) = (0, Vec::with_capacity(ANSWER.len()));
    let mut turn = || -> std::io::Result<bool> {
        if sent < ASKED.len() {
            sent += stream.send(&[IoSlice::new(&ASKED[sent..])])?;
        }
        if stream.receive(&mut answer)?.is_none() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if answer.len() == ANSWER.len() {
            return Ok(true);
        }
        stream.wait(if sent < ASKED.len() { Until::CanSend } else { Until::Arrived }, deadline)?;
        Ok(false)
    };
    while !turn()? {
        if Instant::now() >= deadline {
            return Err(ProveError::Unreached);
        }
    }
    if answer == ANSWER {
        return Ok(());
    }
    Err(ProveError::InvalidAnswer(answer.escape_ascii().to_string()))
}

/// The error for an invalid answer. It does not contain the answer, whose contents give access to the server's
/// memory.
const UNSOUND: &str = "invalid answer to fabric attach";

/// Returns why there is no fabric, from the server's answer to `fabric hello`.
fn no_offer(line: String) -> String {
    let is_said = line.starts_with("CLIENT_ERROR ") || line.starts_with("SERVER_ERROR ");
    if is_said { line } else { format!("the server has no fabric; it answers {line:?}") }
}

/// Returns why a server rejects the endpoint, with its address: the address may be the reason, and a machine has
/// several.
fn not_attached(line: String, name: &[u8]) -> String {
    match ip_of(name) {
        Some(address) => format!("{line}; this endpoint is at {address}"),
        None => line,
    }
}

/// Why this machine has no such fabric.
struct UnsupportedHere(String);

impl From<fabcache_fabric::Error> for UnsupportedHere {
    fn from(error: fabcache_fabric::Error) -> UnsupportedHere {
        UnsupportedHere(error.to_string())
    }
}

/// Returns the interface that reaches the server as offered.
fn domain(
    offer: &Offer,
    options: &crate::Fabric,
    host: Option<IpAddr>,
) -> Result<Arc<Domain>, UnsupportedHere> {
    let Offer { provider, protocol, address_format, .. } = offer;
    if let Some(name) = options.provider.as_deref()
        && name != provider
        && provider.split(';').next() != Some(name)
    {
        return Err(UnsupportedHere(format!("its provider is {provider:?}, but {name:?} is required")));
    }
    let requirements = ProviderRequirements {
        provider: Some(provider.clone()),
        interface: options.interface.clone(),
        only_this_host: false,
    };
    let domain = domains::domain(host, *address_format, &requirements)?;
    let own = domain.provider();
    if (own.protocol, own.address_format) != (*protocol, *address_format) {
        return Err(UnsupportedHere(format!("its {provider} and this machine's are incompatible")));
    }
    Ok(domain)
}

/// Opens an endpoint that no server knows yet.
fn new_end(domain: &Arc<Domain>) -> Result<End, UnsupportedHere> {
    if !lingering_links::has_room() {
        return Err(UnsupportedHere(format!(
            "{KEPT_LINKS_MAX} closed links wait for stalled servers, which may still write to them"
        )));
    }
    Ok(End::new(domain)?)
}

/// Returns the description of this endpoint that the server gets.
fn words(end: &End) -> String {
    let mut words = STANDARD.encode(end.name());
    let _ = write!(words, " {:x} {}", end.token, end.credits());
    for RemoteMemory { address, key, bytes } in [end.staging(), end.landing()] {
        let _ = write!(words, " {address} {key} {bytes}");
    }
    words
}

impl Offer {
    /// `FABRIC <provider> <protocol> <address format> <one-sided>`
    fn of(line: &str) -> Option<Offer> {
        let mut words = words_of(line)?;
        let provider = words.next()?.into();
        let (protocol, address_format) = (next(&mut words)?, next(&mut words)?);
        let is_one_sided = next::<u8>(&mut words)? == 1;
        Some(Offer { provider, protocol, address_format, is_one_sided })
    }
}

impl Granted {
    /// `FABRIC <name> <token> <credits> <region bytes> <clock ns> <region address> <region key> <secret> <grace ns>`: the token in
    /// hexadecimal digits, name and secret in base64.
    fn of(line: &str) -> Option<Granted> {
        let mut words = words_of(line)?;
        let name = base64(&mut words)?;
        let token = u64::from_str_radix(words.next()?, 16).ok()?;
        let credits = next(&mut words)?;
        let (bytes, clock_ns) = (next(&mut words)?, next(&mut words)?);
        let memory = RemoteMemory { address: next(&mut words)?, key: next(&mut words)?, bytes };
        let secret: [u8; SECRET_BYTES] = base64(&mut words)?.try_into().ok()?;
        let grace_ns = next(&mut words)?;
        let is_sound = (1..=NAME_BYTES_MAX).contains(&name.len())
            && credits <= CREDITS_MAX
            && memory.address.checked_add(bytes).is_some();
        let secret = Secret(secret);
        is_sound.then_some(Granted { name, token, credits, clock_ns, memory, secret, grace_ns })
    }
}

fn words_of(line: &str) -> Option<SplitAsciiWhitespace<'_>> {
    let mut words = line.split_ascii_whitespace();
    (words.next() == Some("FABRIC")).then_some(words)
}

fn next<N: FromStr>(words: &mut SplitAsciiWhitespace<'_>) -> Option<N> {
    words.next()?.parse().ok()
}

fn base64(words: &mut SplitAsciiWhitespace<'_>) -> Option<Vec<u8>> {
    STANDARD.decode(words.next()?).ok()
}

/// Returns the server's words in answer to `fabric WHAT WORDS`, or the reason that a packet gives for having none.
fn request_words(
    Socket { socket, encoding }: &Socket,
    what: &str,
    words: &str,
    deadline: Instant,
) -> Result<String, AttachError> {
    if *encoding != Encoding::Binary {
        let (line, _) = request_line(socket, &format!("fabric {what} {words}\r\n"), deadline)?;
        return Ok(line.trim_end().into());
    }
    let order =
        if what == "hello" { AdminCommand::FabricHello(words) } else { AdminCommand::FabricAttach(words) };
    let (answer, _) = exchange(socket, &packet::order(order), deadline, |came| packet::said(came).is_some())?;
    if answer.first() != Some(&RESPONSE) {
        return Err(Failure::protocol(&answer).into());
    }
    match packet::said(&answer) {
        Some((Ok(said), _)) => Ok(String::from_utf8_lossy(said.value).trim_end().into()),
        Some((Err(Failure::Refused(why)), _)) => Err(AttachError::Refused(why)),
        _ => Err(Failure::protocol(&answer).into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn refusal_names_the_clients_endpoint_address() {
        let refused = |name: &[u8]| not_attached("CLIENT_ERROR not for this address".into(), name);
        let name = [2, 0, 0, 80, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(refused(&name), "CLIENT_ERROR not for this address; this endpoint is at 192.0.2.1");
        assert_eq!(refused(b"fi_shm://1"), "CLIENT_ERROR not for this address");
    }

    /// Valid, nearly valid and invalid words.
    fn word() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<u64>().prop_map(|number| number.to_string()),
            any::<u16>().prop_map(|number| format!("{number:x}")),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(|bytes| STANDARD.encode(bytes)),
            Just(STANDARD.encode([7; SECRET_BYTES])),
            Just("18446744073709551615".into()),
            Just("FABRIC".into()),
            "[ -~]{0,30}",
            any::<String>(),
        ]
    }

    proptest! {
        #[test]
        fn any_line_parses_or_is_rejected(words in prop::collection::vec(word(), 0..12), sound in any::<bool>()) {
            let line = if sound { format!("FABRIC {}", words.join(" ")) } else { words.join(" ") };
            let _ = Offer::of(&line);
            prop_assert!(Granted::of(&line).is_none_or(|granted| is_kept_to(&granted)));
        }

        #[test]
        fn replacing_one_word_of_a_valid_line_changes_or_rejects_it(
            name in prop::collection::vec(any::<u8>(), 1..=NAME_BYTES_MAX),
            numbers in any::<(u64, u64, u64, u64)>(),
            credits in 0..=CREDITS_MAX,
            bytes in 0..1u64 << 42,
            at in 0usize..12,
            other in word(),
        ) {
            let (token, clock_ns, key, grace_ns) = numbers;
            let (name_text, secret) = (STANDARD.encode(&name), STANDARD.encode([3; SECRET_BYTES]));
            let line = format!("FABRIC {name_text} {token:x} {credits} {bytes} {clock_ns} 77 {key} {secret} {grace_ns}");
            let granted = Granted::of(&line).expect("valid words");
            prop_assert_eq!((&granted.name, granted.token, granted.credits), (&name, token, credits));
            prop_assert_eq!(granted.memory, RemoteMemory { address: 77, key, bytes });
            prop_assert_eq!((granted.clock_ns, granted.grace_ns), (clock_ns, grace_ns));
            let mut words: Vec<&str> = line.split(' ').collect();
            if at < words.len() {
                words[at] = &other;
            }
            prop_assert!(Granted::of(&words.join(" ")).is_none_or(|granted| is_kept_to(&granted)));
        }
    }

    /// Returns whether the fields that are used without further checks are valid.
    fn is_kept_to(Granted { name, credits, memory, .. }: &Granted) -> bool {
        let ends = memory.address.checked_add(memory.bytes).is_some();
        (1..=NAME_BYTES_MAX).contains(&name.len()) && *credits <= CREDITS_MAX && ends
    }

    #[test]
    fn any_server_reply_parses_or_is_rejected() {
        let offer = Offer::of("FABRIC tcp;ofi_rxm 4 2 0").expect("a valid offer");
        let expected =
            Offer { provider: "tcp;ofi_rxm".into(), protocol: 4, address_format: 2, is_one_sided: false };
        assert_eq!(offer, expected);
        for wrong in ["", "FABRIC", "FABRIC tcp 4 2", "FABRIC tcp x 2 0", "CLIENT_ERROR no"] {
            assert_eq!(Offer::of(wrong), None, "{wrong}");
        }
        let secret = STANDARD.encode([7; SECRET_BYTES]);
        let granted = format!("FABRIC AAEC ff 8 4096 5 100 {} {secret} 9", u64::MAX);
        let Granted { name, token, credits, clock_ns, memory, grace_ns, .. } =
            Granted::of(&granted).expect("sound");
        assert_eq!((name, token, credits, clock_ns, grace_ns), (vec![0, 1, 2], 255, 8, 5, 9));
        assert_eq!(memory, RemoteMemory { address: 100, key: u64::MAX, bytes: 4096 });
        for (sound, wrong) in [
            ("AAEC", "A!EC"),
            (" ff ", " xx "),
            (" 8 ", " 70000 "),
            (" 8 ", " 5000 "),
            (" 100 ", " 18446744073709551615 "),
            (&*secret, "AAAA"),
            (" 9", ""),
        ] {
            assert!(Granted::of(&granted.replace(sound, wrong)).is_none(), "{wrong}");
        }
    }
}
