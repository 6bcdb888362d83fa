//! Authentication and authorization: text (-Y) and SASL PLAIN for binary (-S).

use fabcache_protocol::{Command, Encoding, Item, Protocol, Refusal, Reply};

use fabcache_transport::Kind;

use super::{Context, Flow, Session, protocol, refused};

/// Binary status of a request that needs authentication first.
const STATUS_AUTH: u16 = fabcache_protocol::binary::status::AUTH;

/// Returns whether a client may send this command before it is authenticated. For text, the decoder lets only
/// authentication through.
pub fn is_allowed(command: &Command<'_>, encoding: &Encoding<'_>) -> bool {
    match protocol(encoding) {
        Protocol::Text => {
            matches!(command, Command::Authenticate { .. } | Command::Refused(_) | Command::Quit)
        }
        Protocol::Binary => matches!(
            command,
            Command::SaslList
                | Command::SaslAuth { .. }
                | Command::SaslStep { .. }
                | Command::Version
                | Command::Quit
                | Command::Refused(_)
        ),
    }
}

/// Answers a request that came too early.
pub fn refuse(ctx: &mut Context, encoding: &Encoding<'_>) -> Flow {
    let refusal = match protocol(encoding) {
        Protocol::Text => Refusal::Client("unauthenticated"),
        Protocol::Binary => Refusal::Status(STATUS_AUTH),
    };
    encoding.reply(&refused(refusal), &mut ctx.out);
    Flow::Close
}

/// Text authentication: `set` of anything with `user password` as its value.
pub fn text(
    ctx: &mut Context,
    session: &mut Session,
    user: &[u8],
    password: &[u8],
    encoding: &Encoding<'_>,
) -> Flow {
    ctx.counters().auth_cmds.inc();
    let admitted = ctx.shared.users.as_ref().is_some_and(|users| users.admit(user, password));
    if !admitted {
        return fail(ctx, session, encoding);
    }
    session.access.granted = true;
    encoding.reply(&Reply::Stored(Item::default()), &mut ctx.out);
    Flow::Admit
}

/// The mechanisms there are.
pub fn mechanisms(ctx: &mut Context, encoding: &Encoding<'_>) {
    let reply = match ctx.shared.settings.sasl {
        true => Reply::Sasl(b"PLAIN"),
        false => refused(Refusal::UnknownCommand),
    };
    encoding.reply(&reply, &mut ctx.out);
}

/// Returns `user@host`: to Cyrus SASL, a user without a realm is one of this host's, and files for it name users so.
fn with_realm(user: &[u8]) -> Vec<u8> {
    [user, b"@", rustix::system::uname().nodename().to_bytes()].concat()
}

/// SASL PLAIN (RFC 4616): authorisation identity, NUL, user, NUL, password.
pub fn sasl(
    ctx: &mut Context,
    session: &mut Session,
    mechanism: &[u8],
    payload: &[u8],
    encoding: &Encoding<'_>,
) -> Flow {
    if !has_sasl(ctx, session) {
        encoding.reply(&refused(Refusal::UnknownCommand), &mut ctx.out);
        return Flow::Next;
    }
    ctx.counters().auth_cmds.inc();
    let mut fields = payload.splitn(3, |byte| *byte == 0);
    let (_identity, user, password) = (fields.next(), fields.next(), fields.next());
    let admitted = mechanism == b"PLAIN"
        && user.zip(password).is_some_and(|(user, password)| {
            ctx.shared
                .sasl_users
                .as_ref()
                .is_some_and(|users| users.admit(user, password) | users.admit(&with_realm(user), password))
        });
    session.access.granted = admitted;
    if !admitted {
        return fail(ctx, session, encoding);
    }
    encoding.reply(&Reply::Sasl(b"Authenticated"), &mut ctx.out);
    Flow::Next
}

/// Answers a further step, which PLAIN does not have.
pub fn step(ctx: &mut Context, session: &mut Session, encoding: &Encoding<'_>) -> Flow {
    if !has_sasl(ctx, session) {
        encoding.reply(&refused(Refusal::UnknownCommand), &mut ctx.out);
        return Flow::Next;
    }
    ctx.counters().auth_cmds.inc();
    fail(ctx, session, encoding)
}

/// Returns whether this client may authenticate by SASL. Guesses in datagrams could not be slowed down.
fn has_sasl(ctx: &Context, session: &Session) -> bool {
    ctx.shared.settings.sasl && session.info.kind != Kind::Udp
}

/// Answers a wrong password.
fn fail(ctx: &mut Context, session: &mut Session, encoding: &Encoding<'_>) -> Flow {
    ctx.counters().auth_errors.inc();
    session.auth_failures += 1;
    encoding.reply(&Reply::AuthFailure, &mut ctx.out);
    Flow::Pause
}
