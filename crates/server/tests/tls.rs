//! TLS: server and client certificates, and their reload.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use common::process::start_without_libfabric;
use common::{Client, REPLY_TIMEOUT, Scratch, connect, serve, try_serve, wait_until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// A certificate authority for servers and clients.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key in PEM.
struct Signed {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    fn sign(&self, name: &str) -> Signed {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Signed { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// Returns a client configuration for this authority's servers.
    fn client(
        &self,
        own: Option<&Signed>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).expect("known");
        let builder = builder.with_root_certificates(roots);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let certificate = CertificateDer::from_pem_slice(own.certificate.as_bytes()).expect("PEM");
                let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(vec![certificate], key).expect("a matching key")
            }
        };
        Arc::new(config)
    }
}

fn secure(address: SocketAddr, config: &Arc<ClientConfig>) -> Client<Stream> {
    let name = ServerName::try_from("localhost").expect("a name");
    let tls = ClientConnection::new(Arc::clone(config), name).expect("a valid configuration");
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(REPLY_TIMEOUT)).expect("a socket");
    Client::new(StreamOwned::new(tls, stream))
}

/// Returns whether the server serves such a client.
fn is_served(address: SocketAddr, config: &Arc<ClientConfig>) -> bool {
    let mut stream = secure(address, config).stream;
    let _ = stream.write_all(b"mn\r\n").and_then(|()| stream.flush());
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).is_ok_and(|()| &answer == b"MN\r\n")
}

/// Writes a server's certificate files; returns the options that name them.
fn files(scratch: &Scratch, authority: &Authority) -> String {
    let server = authority.sign("localhost");
    let chain = scratch.file("chain.pem", &server.certificate);
    let key = scratch.file("key.pem", &server.key);
    let ca = scratch.file("ca.pem", &authority.0.pem());
    format!("-o ssl_chain_cert={},ssl_key={},ssl_ca_cert={}", chain.display(), key.display(), ca.display())
}

const ALL: &[&SupportedProtocolVersion] = rustls::ALL_VERSIONS;

#[test]
fn tls_client_is_not_sent_to_the_unencrypted_fabric() {
    let scratch = Scratch::new("tls-fabric");
    let authority = Authority::new();
    let files = files(&scratch, &authority);
    let server = start_without_libfabric(&format!("-Z {files} -l notls:127.0.0.1 --fabric"));
    let [secret, plain] = server.addresses()[..] else { panic!("two addresses") };
    let mut c = secure(secret, &authority.client(None, ALL));
    c.request(
        "fabric hello 1 1\r\n",
        "CLIENT_ERROR the fabric is not for clients that come by TLS, as nothing is encrypted on it\r\n",
    );
    let mut d = connect(plain);
    d.say("fabric hello 1 1\r\n");
    assert!(d.hear_until("\r\n").starts_with("SERVER_ERROR there is no fabric"));
}

#[test]
fn requests_of_every_size_work_over_tls() {
    let scratch = Scratch::new("tls-plain");
    let authority = Authority::new();
    let server = serve(&format!("-Z {} -I 8m", files(&scratch, &authority)));
    let config = authority.client(None, ALL);
    let mut c = secure(server.address(), &config);
    c.request("set a 0 0 1\r\nx\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    for len in [10_000, 16_384, 100_000, 4_000_000] {
        let value = "v".repeat(len);
        c.say(format!("set v 0 0 {len}\r\n{value}\r\nget v\r\nget v\r\n"));
        let answer = format!("VALUE v 0 {len}\r\n{value}\r\nEND\r\n");
        c.hear(format!("STORED\r\n{answer}{answer}"));
    }
    c.say("get a\r\n".repeat(5_000));
    c.hear("VALUE a 0 1\r\nx\r\nEND\r\n".repeat(5_000));
    assert_eq!(
        (c.stat("settings", "ssl_enabled"), c.stat("settings", "ssl_min_version")),
        ("yes".into(), "tlsv1.2".into())
    );
    assert_eq!(c.stats("").len(), 96);
    c.say("quit\r\n");
    c.hear_end();
}

#[test]
fn versions_below_the_minimum_are_refused() {
    let scratch = Scratch::new("tls-versions");
    let authority = Authority::new();
    let options = files(&scratch, &authority);
    let old = authority.client(None, &[&rustls::version::TLS12]);
    let new = authority.client(None, &[&rustls::version::TLS13]);
    let both = serve(&format!("-Z {options}"));
    assert!(is_served(both.address(), &old) && is_served(both.address(), &new));
    let newer = serve(&format!("-Z {options},ssl_min_version=3"));
    assert!(!is_served(newer.address(), &old) && is_served(newer.address(), &new));
    assert_eq!(secure(newer.address(), &new).stat("", "ssl_handshake_errors"), "1");
}

#[test]
fn client_certificates_are_required_if_configured() {
    let scratch = Scratch::new("tls-mutual");
    let (authority, stranger) = (Authority::new(), Authority::new());
    let options = files(&scratch, &authority);
    let (known, unknown) = (authority.sign("client"), stranger.sign("client"));
    let with = authority.client(Some(&known), ALL);
    let with_foreign = authority.client(Some(&unknown), ALL);
    let without = authority.client(None, ALL);
    let served = |flags: &str| {
        let server = serve(&format!(
            "{flags} {options}{}",
            if flags.contains("mtls") { "" } else { ",ssl_verify_mode=2" }
        ));
        [&with, &without, &with_foreign].map(|config| is_served(server.address(), config))
    };
    assert_eq!(served("-l mtls:127.0.0.1 -p -1"), [true, false, false]);
    assert_eq!(served("-Z"), [true, false, false]);
    let asked_for = serve(&format!("-Z {options},ssl_verify_mode=1"));
    assert_eq!(
        [&with, &without, &with_foreign].map(|c| is_served(asked_for.address(), c)),
        [true, true, false]
    );
    let none = serve(&format!("-Z {options}"));
    assert_eq!([&with, &without, &with_foreign].map(|c| is_served(none.address(), c)), [true, true, true]);
}

#[test]
fn listeners_have_their_own_tls_settings() {
    let scratch = Scratch::new("tls-each");
    let authority = Authority::new();
    let users = scratch.file("users", "ann:secret\n");
    let server = serve(&format!(
        "-p -1 {} -Y {} -l noauth:127.0.0.1,btls:127.0.0.2,mtls:noauth:127.0.0.3",
        files(&scratch, &authority),
        users.display()
    ));
    let at = server.addresses();
    connect(at[0]).request("mn\r\n", "MN\r\n");
    let without = authority.client(None, ALL);
    let mut c = secure(at[1], &without);
    c.request(
        "mn\r\nset a 0 0 10\r\nann secret\r\nmn\r\n",
        "CLIENT_ERROR unauthenticated\r\nSTORED\r\nMN\r\n",
    );
    assert!(!is_served(at[2], &without));
    let own = authority.sign("client");
    assert!(is_served(at[2], &authority.client(Some(&own), ALL)));
    // A client without TLS ends only its own connection.
    let mut plain = connect(at[1]);
    plain.say("mn\r\nmn\r\nmn\r\n");
    let mut heard = Vec::new();
    let _ = plain.stream.read_to_end(&mut heard);
    assert!(!heard.windows(2).any(|two| two == b"MN"));
    c.request("mn\r\n", "MN\r\n");
    wait_until("the error is counted", || c.count("", "ssl_handshake_errors") == 2);
}

fn serial(c: &Client<Stream>) -> Vec<u8> {
    c.stream.conn.peer_certificates().expect("after the handshake")[0].to_vec()
}

#[test]
fn certificates_are_reloaded() {
    let scratch = Scratch::new("tls-again");
    let authority = Authority::new();
    let server = serve(&format!("-Z {}", files(&scratch, &authority)));
    let config = authority.client(None, ALL);
    let mut old = secure(server.address(), &config);
    old.request("mn\r\n", "MN\r\n");
    files(&scratch, &authority);
    old.request("refresh_certs\r\n", "OK\r\n");
    let mut new = secure(server.address(), &config);
    new.request("mn\r\n", "MN\r\n");
    old.request("mn\r\n", "MN\r\n");
    assert_ne!(serial(&old), serial(&new));
    assert!(new.count("", "time_since_server_cert_refresh") < 60);
    // A broken file changes nothing.
    scratch.file("chain.pem", "broken");
    new.request("refresh_certs\r\n", "SERVER_ERROR cannot reload the certificates; see the log\r\n");
    let mut newer = secure(server.address(), &config);
    newer.request("mn\r\n", "MN\r\n");
    assert_eq!(serial(&newer), serial(&new));
}

/// A self-signed certificate of X.509 version 1, made with `openssl x509 -req` without extensions, and its key.
const VERSION_1: [&str; 2] = [
    "\
-----BEGIN CERTIFICATE-----
MIIBJDCBywIUVUuzB8V3eccqeoCHJXRaqYB3HNQwCgYIKoZIzj0EAwIwFDESMBAG
A1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyNDE2MDg0N1oYDzIxMjYxMDMxMTYwODQ3
WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AAQPmKyOfcUTWTbF0HrcLGvuYSiX6d48ySh6wIB4PDVVWEfYiZR9S5m1cu1vvxvz
7j/JwdJz/VAjDxykELchVVsWMAoGCCqGSM49BAMCA0gAMEUCIF0MTENws4UpAccn
ZXihcf0+NvhaDgCnDuRXuvo6bRm+AiEA3U7Jg7MJ58+N2H/lG+AtIWag9x4kRDUx
3F3HN3JgNTQ=
-----END CERTIFICATE-----
",
    "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg8kihFPJ9ZHt92zxs
XA0xKaZ/t4ysnatddSMOiwa5CFGhRANCAAQPmKyOfcUTWTbF0HrcLGvuYSiX6d48
ySh6wIB4PDVVWEfYiZR9S5m1cu1vvxvz7j/JwdJz/VAjDxykELchVVsW
-----END PRIVATE KEY-----
",
];

#[test]
fn certificate_of_version_1_is_refused_with_advice() {
    let scratch = Scratch::new("tls-version-1");
    let chain = scratch.file("chain.pem", VERSION_1[0]);
    let key = scratch.file("key.pem", VERSION_1[1]);
    let flags = format!("-Z -o ssl_chain_cert={},ssl_key={}", chain.display(), key.display());
    let error = format!("{:#}", try_serve(&flags).err().expect("a certificate that rustls does not use"));
    for part in [&*chain.to_string_lossy(), "version 1", "openssl x509 -req", "subjectAltName=DNS:NAME"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn key_labelled_rsa_may_be_pkcs8() {
    let scratch = Scratch::new("tls-label");
    let authority = Authority::new();
    let flags = files(&scratch, &authority);
    let key = std::fs::read_to_string(scratch.path("key.pem")).expect("just written");
    let labelled = key.replace(" PRIVATE KEY", " RSA PRIVATE KEY");
    assert_ne!(key, labelled);
    scratch.file("key.pem", &labelled);
    let server = serve(&format!("-Z {flags}"));
    assert!(is_served(server.address(), &authority.client(None, ALL)));
}

#[test]
fn certificate_errors_are_reported_at_start() {
    let scratch = Scratch::new("tls-wrong");
    let authority = Authority::new();
    let server = authority.sign("localhost");
    let chain = scratch.file("chain.pem", &server.certificate);
    let key = scratch.file("key.pem", &server.key);
    let other = scratch.file("other.pem", &authority.sign("localhost").key);
    let empty = scratch.file("empty.pem", "");
    let broken = scratch.file("broken.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let missing = scratch.path("missing.pem");
    for (chain, key, ca, needle, named) in [
        (&missing, &key, None, "cannot read certificates", &missing),
        (&chain, &missing, None, "cannot read a private key", &missing),
        (&chain, &other, None, "do not fit", &other),
        (&empty, &key, None, "holds no certificate", &empty),
        (&key, &key, None, "holds no certificate", &key),
        (&chain, &chain, None, "cannot read a private key", &chain),
        (&broken, &key, None, "do not fit", &broken),
        (&chain, &key, Some(&missing), "cannot read certificates", &missing),
        (&chain, &key, Some(&empty), "holds no certificate", &empty),
        (&chain, &key, Some(&broken), "not usable", &broken),
    ] {
        let ca = ca.map_or(String::new(), |ca| format!(",ssl_verify_mode=2,ssl_ca_cert={}", ca.display()));
        let flags = format!("-Z -o ssl_chain_cert={},ssl_key={}{ca}", chain.display(), key.display());
        let error = format!("{:#}", try_serve(&flags).err().expect("an invalid certificate"));
        assert!(error.contains(needle) && error.contains(&named.display().to_string()), "{flags}: {error}");
    }
}
