//! Answers come in the order of the requests, and each request sees the ones before it, over every link.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use fabcache_testbed::io_uring::engines;
use fabcache_testbed::local::socket_path;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::common::{Client, REPLY_TIMEOUT, connect_unix, serve};
use crate::model::Model;
use crate::tier::{Tier, device, folder, letters, retried};

/// Runs pipelines while other items push those of the model out of memory.
#[track_caller]
fn check_mixed<S: Read + Write>(client: &mut Client<S>, seed: u64) {
    let mut model = Model::new("mixed", seed, 3000);
    model.store_all(client);
    for round in 0..4 {
        client.fill_with(&format!("other-{round}"), 9 << 20);
        for _ in 0..8 {
            model.run(client, 100);
        }
    }
    let reads = client.flash_reads();
    assert!(reads > 50, "{reads} reads of flash");
    model.run_slowly(client, 20);
    let losses = 1 + client.losses();
    assert!(model.lost <= losses, "{} items are missing without a reason", model.lost);
}

#[test]
fn pipelines_are_answered_in_order_over_tcp() {
    for (seed, engine) in engines().iter().enumerate() {
        for threads in [1, 4] {
            let Some(tier) = Tier::new(&format!("--engine {engine} -t {threads}")) else { return };
            check_mixed(&mut tier.server.connect(), seed as u64 * 8 + threads);
            tier.server.stop();
        }
    }
}

#[test]
fn pipelines_are_answered_in_order_without_eviction() {
    let Some(tier) = Tier::new("-M -t 2") else { return };
    check_mixed(&mut tier.server.connect(), 7);
}

#[test]
fn pipelines_are_answered_in_order_over_unix_sockets() {
    let Some(folder) = folder() else { return };
    for engine in engines() {
        let path = socket_path("flash");
        let flags =
            format!("-s {} --engine {engine} -m 8 {}", path.display(), device(&folder.path().join(engine)));
        let server = serve(&flags);
        check_mixed(&mut connect_unix(&path), 11);
        server.stop();
    }
}

#[test]
fn pipelines_are_answered_in_order_over_tls() {
    let Some(folder) = folder() else { return };
    let key = KeyPair::generate().expect("a key");
    let certificate =
        CertificateParams::new(["localhost".to_owned()]).expect("a name").self_signed(&key).expect("signed");
    let [certificate_file, key_file] = ["certificate", "key"].map(|name| folder.path().join(name));
    std::fs::write(&certificate_file, certificate.pem()).expect("written");
    std::fs::write(&key_file, key.serialize_pem()).expect("written");
    for engine in engines() {
        let server = serve(&format!(
            "-Z -o ssl_chain_cert={},ssl_key={} --engine {engine} -m 8 {}",
            certificate_file.display(),
            key_file.display(),
            device(&folder.path().join(engine))
        ));
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(certificate.pem().as_bytes()).expect("PEM"))
            .expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("known");
        let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = TcpStream::connect(server.address()).expect("the server listens");
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).expect("a socket");
        let stream = StreamOwned::new(ClientConnection::new(config, name).expect("a name"), stream);
        check_mixed(&mut Client::new(stream), 13);
        server.stop();
    }
}

/// A server whose items `on-0` … are on flash, and `in-0` … in memory.
fn halves(flags: &str) -> Option<(Tier, Client<TcpStream>)> {
    let tier = Tier::new(flags)?;
    let mut c = tier.server.connect();
    for n in 0..100 {
        c.request(format!("set on-{n} 0 0 500\r\n{}\r\n", text(n)), "STORED\r\n");
    }
    c.fill();
    for n in 0..100 {
        c.request(format!("set in-{n} 0 0 500\r\n{}\r\n", text(n)), "STORED\r\n");
    }
    Some((tier, c))
}

fn text(n: usize) -> String {
    String::from_utf8(letters(n, 500)).expect("letters")
}

#[test]
fn a_multiget_mixes_flash_and_memory() {
    retried(|| {
        let Some((_tier, mut c)) = halves("") else { return };
        let before = c.flash_reads();
        let names: String = (0..100).map(|n| format!(" on-{n} in-{n} none-{n}")).collect();
        let value = |n: usize| format!("VALUE on-{n} 0 500\r\n{0}\r\nVALUE in-{n} 0 500\r\n{0}\r\n", text(n));
        let answer: String = (0..100).map(value).collect();
        for _ in 0..3 {
            c.request(format!("get{names}\r\nmn\r\n"), format!("{answer}END\r\nMN\r\n"));
        }
        assert!(c.flash_reads() >= before + 50);
    });
}

#[test]
fn changes_show_in_later_reads_only() {
    retried(|| {
        let Some((_tier, mut c)) = halves("-t 1") else { return };
        for n in 0..100 {
            let (old, flash, memory) = (text(n), format!("on-{n}"), format!("in-{n}"));
            let requests = format!(
                "get {flash}\r\nset {flash} 0 0 3\r\nnew\r\nget {flash}\r\nget {memory}\r\nappend {memory} 0 0 1\r\n!\r\n\
             set {flash} 0 0 1 noreply\r\n2\r\nincr {flash} 2\r\nget {flash} {memory}\r\ndelete {flash}\r\nget {flash}\r\n"
            );
            let answers = format!(
                "VALUE {flash} 0 500\r\n{old}\r\nEND\r\nSTORED\r\nVALUE {flash} 0 3\r\nnew\r\nEND\r\n\
             VALUE {memory} 0 500\r\n{old}\r\nEND\r\nSTORED\r\n4\r\n\
             VALUE {flash} 0 1\r\n4\r\nVALUE {memory} 0 501\r\n{old}!\r\nEND\r\nDELETED\r\nEND\r\n"
            );
            c.request(requests, answers);
        }
    });
}

/// Another client's change is seen once it was acknowledged, whatever this one has read ahead.
#[test]
fn acknowledged_changes_are_seen_by_all() {
    retried(|| {
        let Some((tier, mut c)) = halves("-t 4") else { return };
        let mut others: Vec<_> = (0..4).map(|_| tier.server.connect()).collect();
        for n in 0..100 {
            for (round, set) in others.iter_mut().enumerate() {
                let value = format!("{n}/{round}");
                set.say(format!("get on-{n}\r\n"));
                set.hear_until("END\r\n");
                c.say(format!("get on-{n}\r\n"));
                set.request(format!("set on-{n} 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
                c.hear_until("END\r\n");
                let answer = format!("VALUE on-{n} 0 {}\r\n{value}\r\nEND\r\n", value.len());
                c.request(format!("get on-{n}\r\n"), answer);
            }
        }
    });
}

#[test]
fn answers_wait_for_flash_before_the_connection_ends() {
    retried(|| {
        let Some((tier, _c)) = halves("-t 1") else { return };
        for end in ["quit\r\n", ""] {
            for n in 0..20 {
                let mut c = tier.server.connect();
                c.say(format!("get on-{n} in-{n}\r\nappend on-{n} 0 0 0\r\n\r\nget on-{n}\r\n{end}"));
                if end.is_empty() {
                    c.stream.shutdown(std::net::Shutdown::Write).expect("a socket");
                }
                let value = text(n);
                c.hear(format!(
                    "VALUE on-{n} 0 500\r\n{value}\r\nVALUE in-{n} 0 500\r\n{value}\r\nEND\r\nSTORED\r\n\
                 VALUE on-{n} 0 500\r\n{value}\r\nEND\r\n"
                ));
                c.hear_end();
            }
        }
    });
}
