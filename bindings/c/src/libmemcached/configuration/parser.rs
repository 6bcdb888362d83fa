//! Parses a configuration string, setting by setting, in the language of libmemcached 1.1.4.
//!
//! Statements are separated by one space. Pure: it opens no file and sets nothing.

use std::fmt;

use super::token::{Token, Tokens};

/// One thing that a configuration string asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting<'a> {
    /// `--SERVER=`: a host with its port, and its weight if one is given.
    Server {
        /// A name or an address.
        host: &'a [u8],
        /// As far as 16 bits go, as in libmemcached.
        port: Option<u16>,
        /// Its share of keys relative to other servers.
        weight: Option<u32>,
    },
    /// `--SOCKET=`: a server's Unix socket, and its weight if one is given.
    Socket {
        /// Its path.
        path: &'a [u8],
        /// Its share of keys relative to other servers.
        weight: Option<u32>,
    },
    /// `--CONFIGURE-FILE=`: a file to be read instead, once the string has been read.
    ConfigureFile(&'a [u8]),
    /// `INCLUDE`: a file with more settings.
    Include(&'a [u8]),
    /// `--NAMESPACE=`: the prefix of each key.
    Namespace(&'a [u8]),
    /// `--DISTRIBUTION=`: how keys are mapped to servers, and the hash of servers' places if one is given.
    Distribution(Token, Option<Token>),
    /// `--HASH=`: the hash of keys.
    Hash(Token),
    /// An option with a number.
    Number(Token, u64),
    /// An option without a value.
    Switch(Token),
    /// `RESET`: as after creation.
    Reset,
}

/// Where a configuration string leaves the language. Its text is libmemcached's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyntaxError {
    unexpected: Token,
    expecting: &'static [Token],
    /// The last that was understood, if this was not.
    last: Token,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error occured during parsing (syntax error, unexpected {}", self.unexpected.name())?;
        for (i, token) in self.expecting.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { ", expecting " } else { " or " }, token.name())?;
        }
        write!(f, "): last_token={}", self.last)
    }
}

impl std::error::Error for SyntaxError {}

/// What may follow a statement.
const AFTER: &[Token] = &[Token::EndOfFile, Token::Space];
const STRING: &[Token] = &[Token::String, Token::QuotedString];
const DISTRIBUTION: &[Token] = &[Token::Consistent, Token::Modula, Token::Random];
const HOST: &[Token] = &[Token::IpAddress, Token::Hostname];

/// The settings of a configuration string, until its end or the first error.
#[derive(Debug, Clone)]
pub struct Settings<'a> {
    tokens: Tokens<'a>,
    /// The token read ahead.
    ahead: Option<(Token, &'a [u8])>,
    /// The last token that began a statement.
    begun: Token,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Start,
    /// After a statement.
    Between,
    Over,
}

impl<'a> Settings<'a> {
    /// Those of `text`.
    pub fn new(text: &'a [u8]) -> Self {
        Self { tokens: Tokens::new(text), ahead: None, begun: Token::Unknown, state: State::Start }
    }

    fn take(&mut self) -> (Token, &'a [u8]) {
        let (token, bytes) = self.ahead.take().unwrap_or_else(|| self.tokens.next_token());
        if token.begins_statement() {
            self.begun = token;
        }
        (token, bytes)
    }

    fn take_if(&mut self, wanted: Token) -> Option<&'a [u8]> {
        let (token, bytes) = *self.ahead.get_or_insert_with(|| self.tokens.next_token());
        (token == wanted).then(|| {
            self.ahead = None;
            bytes
        })
    }

    fn unexpected<T>(&self, token: Token, expecting: &'static [Token]) -> Result<T, SyntaxError> {
        let last = if token == Token::Unknown { self.begun } else { token };
        Err(SyntaxError { unexpected: token, expecting, last })
    }

    /// The next token, which must be one of `expecting`.
    fn expect(&mut self, expecting: &'static [Token]) -> Result<(Token, &'a [u8]), SyntaxError> {
        let (token, bytes) = self.take();
        if expecting.contains(&token) { Ok((token, bytes)) } else { self.unexpected(token, expecting) }
    }

    fn statement(&mut self) -> Result<Option<Setting<'a>>, SyntaxError> {
        if self.state == State::Between && self.expect(AFTER)?.0 == Token::EndOfFile {
            return Ok(None);
        }
        let (token, _) = self.take();
        let setting = match token {
            Token::End => return Ok(None),
            Token::Comment | Token::Debug => return Ok(Some(Setting::Switch(token))),
            Token::Reset => Setting::Reset,
            Token::Include => {
                self.expect(&[Token::Space])?;
                Setting::Include(self.string()?)
            }
            Token::Server => {
                let (_, host) = self.expect(HOST)?;
                let port = self.take_if(Token::Port).map(|bytes| number(bytes) as u16);
                Setting::Server { host, port, weight: self.weight() }
            }
            Token::Socket => Setting::Socket { path: self.string()?, weight: self.weight() },
            Token::ConfigureFile => Setting::ConfigureFile(self.string()?),
            Token::Namespace => Setting::Namespace(self.string()?),
            Token::Distribution => {
                let (distribution, _) = self.expect(DISTRIBUTION)?;
                let comma = self.take_if(Token::Comma);
                Setting::Distribution(distribution, comma.map(|_| self.hash()).transpose()?)
            }
            Token::Hash => Setting::Hash(self.hash()?),
            token if takes_number(token) => {
                let (_, digits) = self.expect(&[Token::Number])?;
                Setting::Number(token, number(digits))
            }
            token if token.begins_statement() => Setting::Switch(token),
            other => return self.unexpected(other, &[]),
        };
        Ok(Some(setting))
    }

    fn weight(&mut self) -> Option<u32> {
        // At most five digits.
        self.take_if(Token::Weight).map(|bytes| number(bytes) as u32)
    }

    fn string(&mut self) -> Result<&'a [u8], SyntaxError> {
        Ok(match self.expect(STRING)? {
            (Token::QuotedString, quoted) => &quoted[1..quoted.len() - 1],
            (_, plain) => plain,
        })
    }

    fn hash(&mut self) -> Result<Token, SyntaxError> {
        let (token, _) = self.take();
        let known = (Token::Md5 as u16..=Token::Jenkins as u16).contains(&(token as u16));
        // More than four would be expected, and then none are named.
        if known { Ok(token) } else { self.unexpected(token, &[]) }
    }
}

impl<'a> Iterator for Settings<'a> {
    type Item = Result<Setting<'a>, SyntaxError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.state == State::Over {
                return None;
            }
            let statement = self.statement().transpose();
            self.state = if matches!(statement, Some(Ok(_))) { State::Between } else { State::Over };
            match statement {
                // What asks for nothing.
                Some(Ok(Setting::Switch(Token::Comment | Token::Debug))) => {}
                other => return other,
            }
        }
    }
}

fn takes_number(token: Token) -> bool {
    use Token::*;
    matches!(
        token,
        ConnectTimeout
            | IoBytesWatermark
            | IoKeyPrefetch
            | IoMsgWatermark
            | NumberOfReplicas
            | PollTimeout
            | RcvTimeout
            | RemoveFailedServers
            | RetryTimeout
            | SndTimeout
            | SocketRecvSize
            | SocketSendSize
            | PoolMin
            | PoolMax
    )
}

/// Parses the digits after any other bytes; saturates.
fn number(bytes: &[u8]) -> u64 {
    let digits = bytes.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0_u64, |number, digit| number.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
}
