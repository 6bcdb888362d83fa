//! The tokens of libmemcached's configuration strings, as libmemcached 1.1.4 defines them.
//!
//! Names and numbers of tokens are part of its error texts, which programs show: they are the same here. The longest
//! matching word counts; case does not matter.

use std::fmt;

use crate::libmemcached::instance::{FABRIC, behind_fabric};

/// The type of a token. The numbers are those in libmemcached's error texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
#[allow(missing_docs)] // Each is the word that it is named for.
pub enum Token {
    EndOfFile = 0,
    Space = 32,
    Comma = 44,
    Equals = 61,
    Comment = 258,
    End = 259,
    Reset = 261,
    Debug = 262,
    Include = 263,
    ConfigureFile = 264,
    Server = 266,
    Socket = 267,
    Servers = 268,
    UnknownOption = 270,
    Unknown = 271,
    BinaryProtocol = 272,
    BufferRequests = 273,
    ConnectTimeout = 274,
    Distribution = 275,
    Hash = 276,
    HashWithNamespace = 277,
    IoBytesWatermark = 278,
    IoKeyPrefetch = 279,
    IoMsgWatermark = 280,
    Noreply = 283,
    NumberOfReplicas = 284,
    PollTimeout = 285,
    RandomizeReplicaRead = 286,
    RcvTimeout = 287,
    RemoveFailedServers = 288,
    RetryTimeout = 289,
    SndTimeout = 290,
    SocketRecvSize = 291,
    SocketSendSize = 292,
    SortHosts = 293,
    SupportCas = 294,
    UserData = 295,
    UseUdp = 296,
    VerifyKey = 297,
    TcpKeepalive = 298,
    TcpKeepidle = 299,
    TcpNodelay = 300,
    FetchVersion = 301,
    Namespace = 302,
    PoolMin = 303,
    PoolMax = 304,
    Md5 = 305,
    Crc = 306,
    Fnv1_64 = 307,
    Fnv1a64 = 308,
    Fnv1_32 = 309,
    Fnv1a32 = 310,
    Hsieh = 311,
    Murmur = 312,
    Jenkins = 313,
    Consistent = 314,
    Modula = 315,
    Random = 316,
    True = 317,
    False = 318,
    Number = 320,
    Port = 321,
    Weight = 322,
    IpAddress = 323,
    Hostname = 324,
    String = 325,
    QuotedString = 326,
}

/// What begins a statement with `--`: how it is spelled, and its name in error texts.
const OPTIONS: &[(Token, &str, &str)] = &[
    (Token::ConfigureFile, "--CONFIGURE-FILE=", "CONFIGURE_FILE"),
    (Token::Server, "--SERVER=", "SERVER"),
    (Token::Socket, "--SOCKET=", "CSL_SOCKET"),
    (Token::BinaryProtocol, "--BINARY-PROTOCOL", "BINARY_PROTOCOL"),
    (Token::BufferRequests, "--BUFFER-REQUESTS", "BUFFER_REQUESTS"),
    (Token::ConnectTimeout, "--CONNECT-TIMEOUT=", "CONNECT_TIMEOUT"),
    (Token::Distribution, "--DISTRIBUTION=", "DISTRIBUTION"),
    (Token::Hash, "--HASH=", "HASH"),
    (Token::HashWithNamespace, "--HASH-WITH-NAMESPACE", "HASH_WITH_NAMESPACE"),
    (Token::IoBytesWatermark, "--IO-BYTES-WATERMARK=", "IO_BYTES_WATERMARK"),
    (Token::IoKeyPrefetch, "--IO-KEY-PREFETCH=", "IO_KEY_PREFETCH"),
    (Token::IoMsgWatermark, "--IO-MSG-WATERMARK=", "IO_MSG_WATERMARK"),
    (Token::Noreply, "--NOREPLY", "NOREPLY"),
    (Token::NumberOfReplicas, "--NUMBER-OF-REPLICAS=", "NUMBER_OF_REPLICAS"),
    (Token::PollTimeout, "--POLL-TIMEOUT=", "POLL_TIMEOUT"),
    (Token::RandomizeReplicaRead, "--RANDOMIZE-REPLICA-READ", "RANDOMIZE_REPLICA_READ"),
    (Token::RcvTimeout, "--RCV-TIMEOUT=", "RCV_TIMEOUT"),
    (Token::RemoveFailedServers, "--REMOVE-FAILED-SERVERS=", "REMOVE_FAILED_SERVERS"),
    (Token::RetryTimeout, "--RETRY-TIMEOUT=", "RETRY_TIMEOUT"),
    (Token::SndTimeout, "--SND-TIMEOUT=", "SND_TIMEOUT"),
    (Token::SocketRecvSize, "--SOCKET-RECV-SIZE=", "SOCKET_RECV_SIZE"),
    (Token::SocketSendSize, "--SOCKET-SEND-SIZE=", "SOCKET_SEND_SIZE"),
    (Token::SortHosts, "--SORT-HOSTS", "SORT_HOSTS"),
    (Token::SupportCas, "--SUPPORT-CAS", "SUPPORT_CAS"),
    (Token::UserData, "--USER-DATA", "USER_DATA"),
    (Token::UseUdp, "--USE-UDP", "USE_UDP"),
    (Token::VerifyKey, "--VERIFY-KEY", "VERIFY_KEY"),
    (Token::TcpKeepalive, "--TCP-KEEPALIVE", "_TCP_KEEPALIVE"),
    (Token::TcpKeepidle, "--TCP-KEEPIDLE", "_TCP_KEEPIDLE"),
    (Token::TcpNodelay, "--TCP-NODELAY", "_TCP_NODELAY"),
    (Token::FetchVersion, "--FETCH-VERSION", "FETCH_VERSION"),
    (Token::Namespace, "--NAMESPACE=", "NAMESPACE"),
    (Token::PoolMin, "--POOL-MIN=", "POOL_MIN"),
    (Token::PoolMax, "--POOL-MAX=", "POOL_MAX"),
];

/// Words with a meaning of their own in any position.
const WORDS: &[(Token, &str, &str)] = &[
    (Token::End, "END", "END"),
    (Token::Reset, "RESET", "RESET"),
    (Token::Debug, "DEBUG", "PARSER_DEBUG"),
    (Token::Include, "INCLUDE", "INCLUDE"),
    (Token::Servers, "SERVERS", "SERVERS"),
    (Token::Md5, "MD5", "MD5"),
    (Token::Crc, "CRC", "CRC"),
    (Token::Fnv1_64, "FNV1_64", "FNV1_64"),
    (Token::Fnv1a64, "FNV1A_64", "FNV1A_64"),
    (Token::Fnv1_32, "FNV1_32", "FNV1_32"),
    (Token::Fnv1a32, "FNV1A_32", "FNV1A_32"),
    (Token::Hsieh, "HSIEH", "HSIEH"),
    (Token::Murmur, "MURMUR", "MURMUR"),
    (Token::Jenkins, "JENKINS", "JENKINS"),
    (Token::Consistent, "CONSISTENT", "CONSISTENT"),
    (Token::Modula, "MODULA", "MODULA"),
    (Token::Random, "RANDOM", "RANDOM"),
    (Token::True, "TRUE", "CSL_TRUE"),
    (Token::False, "FALSE", "CSL_FALSE"),
];

/// Tokens without a fixed spelling.
const OTHERS: &[(Token, &str)] = &[
    (Token::EndOfFile, "end of file"),
    (Token::Space, "' '"),
    (Token::Comma, "','"),
    (Token::Equals, "'='"),
    (Token::Comment, "COMMENT"),
    (Token::UnknownOption, "UNKNOWN_OPTION"),
    (Token::Unknown, "UNKNOWN"),
    (Token::Number, "NUMBER"),
    (Token::Port, "PORT"),
    (Token::Weight, "WEIGHT_START"),
    (Token::IpAddress, "IPADDRESS"),
    (Token::Hostname, "HOSTNAME"),
    (Token::String, "STRING"),
    (Token::QuotedString, "QUOTED_STRING"),
];

/// Digits of a port, and of a weight.
const DIGITS_MAX: usize = 5;

impl Token {
    /// Its name in error texts.
    pub fn name(self) -> &'static str {
        let spelled = OPTIONS.iter().chain(WORDS).map(|&(token, _, name)| (token, name));
        let mut all = spelled.chain(OTHERS.iter().copied());
        all.find(|&(token, _)| token == self).map_or("UNKNOWN", |(_, name)| name)
    }

    /// Returns whether a statement begins with it, so that an error in it names it.
    pub fn begins_statement(self) -> bool {
        matches!(self, Self::Reset | Self::Debug | Self::Include | Self::End)
            || OPTIONS.iter().any(|&(token, ..)| token == self)
    }
}

/// As error texts end: the name with its number.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EndOfFile => write!(f, "\"{}\"(0)", self.name()),
            _ => write!(f, "{}({})", self.name(), *self as u16),
        }
    }
}

/// Takes a configuration string apart, from front to back.
#[derive(Debug, Clone)]
pub struct Tokens<'a> {
    rest: &'a [u8],
    at_line_start: bool,
    /// The name of a host is expected: other words are strings.
    after_server: bool,
}

impl<'a> Tokens<'a> {
    /// Those of `text`.
    pub fn new(text: &'a [u8]) -> Self {
        Self { rest: text, at_line_start: true, after_server: false }
    }

    /// Returns the next token and its bytes; [`Token::EndOfFile`] repeatedly at the end.
    pub fn next_token(&mut self) -> (Token, &'a [u8]) {
        // They separate nothing, they are not there.
        while let [byte @ (b'\t' | b'\n'), rest @ ..] | [b'\r', byte @ b'\n', rest @ ..] = self.rest {
            self.at_line_start = *byte == b'\n';
            self.rest = rest;
        }
        if self.rest.is_empty() {
            return (Token::EndOfFile, self.rest);
        }
        let (token, length) = self.longest();
        let (bytes, rest) = self.rest.split_at(length);
        self.rest = rest;
        self.at_line_start = bytes.ends_with(b"\n");
        self.after_server = token == Token::Server;
        (token, bytes)
    }

    fn longest(&self) -> (Token, usize) {
        let rest = self.rest;
        let found = match rest[0] {
            b' ' => Some((Token::Space, 1)),
            b',' => Some((Token::Comma, 1)),
            b'=' => Some((Token::Equals, 1)),
            b'-' => option(rest),
            b'"' => quoted(rest).map(|length| (Token::QuotedString, length)),
            b':' => number_after(rest, b":").map(|length| (Token::Port, length)),
            b'/' => number_after(rest, b"/?").map(|length| (Token::Weight, length)),
            b'#' if self.at_line_start => {
                rest.iter().position(|&byte| byte == b'\n').map(|end| (Token::Comment, end + 1))
            }
            byte if byte.is_ascii_alphanumeric() => word(rest, self.after_server),
            _ => None,
        };
        found.unwrap_or((Token::Unknown, 1))
    }
}

fn starts_with(text: &[u8], word: &str) -> bool {
    text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()))
}

fn count(text: &[u8], of: impl Fn(u8) -> bool) -> usize {
    text.iter().take_while(|&&byte| of(byte)).count()
}

/// Matches an option, or text of that form.
fn option(text: &[u8]) -> Option<(Token, usize)> {
    let unknown = starts_with(text, "--")
        .then(|| (Token::UnknownOption, 2 + count(&text[2..], |byte| byte.is_ascii_alphanumeric())));
    let known = OPTIONS.iter().filter(|(_, spelled, _)| starts_with(text, spelled));
    let known = known.map(|&(token, spelled, _)| (token, spelled.len())).max_by_key(|&(_, length)| length);
    match (known, unknown) {
        (Some(known), Some(unknown)) if unknown.1 > known.1 => Some(unknown),
        (Some(known), _) => Some(known),
        (None, unknown) => unknown,
    }
}

/// The length of a string in quotation marks, in which a backslash goes with what follows it.
fn quoted(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn number_after(text: &[u8], sign: &[u8]) -> Option<usize> {
    let digits = count(text.strip_prefix(sign)?, |byte| byte.is_ascii_digit()).min(DIGITS_MAX);
    (digits > 0).then_some(sign.len() + digits)
}

/// Matches text that begins with a letter or a digit. A name has at least three bytes and also ends with one of
/// these.
fn word(text: &[u8], after_server: bool) -> Option<(Token, usize)> {
    if after_server && let Some(host) = behind_fabric(text) {
        let is_host = |(token, _): &(Token, usize)| matches!(token, Token::Hostname | Token::IpAddress);
        return word(host, true).filter(is_host).map(|(_, length)| (Token::Hostname, FABRIC.len() + length));
    }
    let letters =
        count(text, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'"'));
    let end = text[..letters].iter().rposition(u8::is_ascii_alphanumeric).map_or(0, |last| last + 1);
    let name = if end >= 3 { end } else { 0 };
    let known = WORDS.iter().filter(|(_, spelled, _)| starts_with(text, spelled));
    let known = known.map(|&(token, spelled, _)| (token, spelled.len())).max_by_key(|&(_, length)| length);
    let address = address(text).map(|length| (Token::IpAddress, length));
    let digits = count(text, |byte| byte.is_ascii_digit());
    let number = (digits > 0).then_some((Token::Number, digits));
    // The longest, and of equals the first.
    let mut best = (if after_server { Token::Hostname } else { Token::String }, name);
    for candidate in [number, address, known].into_iter().flatten() {
        if candidate.1 >= best.1 {
            best = candidate;
        }
    }
    (best.1 > 0).then_some(best)
}

/// The length of four numbers of up to three digits with dots between them.
fn address(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    for part in 0..4 {
        if part > 0 {
            at += usize::from(*text.get(at)? == b'.');
            if text[at - 1] != b'.' {
                return None;
            }
        }
        let digits = count(&text[at..], |byte| byte.is_ascii_digit()).min(3);
        if digits == 0 {
            return None;
        }
        at += digits;
    }
    Some(at)
}
