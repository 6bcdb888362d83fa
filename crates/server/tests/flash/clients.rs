//! Clients that leave, stall or are many, and servers that stop, while flash is read and written.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use fabcache_testbed::io_uring::engines;
use rustix::process::Signal;

use crate::common::process::start;
use crate::common::{Client, connect, wait_until};
use crate::tier::{Tier, device, folder, letters, retried};

fn value(n: usize) -> String {
    String::from_utf8(letters(n, 1000)).expect("letters")
}

fn found(n: usize) -> String {
    format!("VALUE key-{n} 0 1000\r\n{}\r\nEND\r\n", value(n))
}

/// Stores items of which most are on flash then.
fn store<S: Read + Write>(c: &mut Client<S>, items: usize) {
    for n in 0..items {
        c.say(format!("set key-{n} 0 0 1000 noreply\r\n{}\r\n", value(n)));
    }
    c.fill();
}

#[test]
fn clients_may_leave_while_their_reads_are_pending() {
    retried(|| {
        for threads in [1, 4] {
            let Some(tier) = Tier::new(&format!("-t {threads}")) else { return };
            let mut c = tier.server.connect();
            store(&mut c, 1000);
            for round in 0..100 {
                let mut leaving = tier.server.connect();
                let n = round * 10;
                leaving.say(format!("get key-{n} key-{} key-{}\r\n", n + 1, n + 2));
                leaving.say(match round % 4 {
                    0 => format!("append key-{n} 0 0 1\r\n!\r\n"),
                    1 => format!("touch key-{n} 0\r\ngat 0 key-{}\r\n", n + 3),
                    2 => format!("get key-{}\r\n", n + 4).repeat(100),
                    _ => format!("append key-{n} 0 0 20000\r\n{}", "x".repeat(10_000)),
                });
                drop(leaving);
            }
            wait_until("all have left", || c.count("", "curr_connections") <= 2);
            // Nothing of theirs reaches another connection.
            for n in (0..1000).step_by(10) {
                tier.server.connect().request(format!("get key-{}\r\n", n + 5), found(n + 5));
            }
            // No segment stays pinned: all of flash is written several times.
            for round in 0..6 {
                c.fill_with(&format!("more-{round}"), 60 << 20);
            }
            let [evicted, refused] =
                ["flash_segments_evicted", "flash_items_refused"].map(|name| c.count("fabcache", name));
            assert!(evicted > 2, "{evicted} segments are evicted, {refused} items refused");
            tier.server.stop();
        }
    });
}

#[test]
fn half_read_answers_harm_nobody() {
    retried(|| {
        let Some(tier) = Tier::new("-t 2") else { return };
        let mut c = tier.server.connect();
        let long = "x".repeat(10_000);
        for n in 0..10 {
            c.request(format!("set long-{n} 0 0 10000\r\n{long}\r\n"), "STORED\r\n");
        }
        store(&mut c, 200);
        let mut slow: Vec<_> = (0..20).map(|_| tier.server.connect()).collect();
        for (n, slow) in slow.iter_mut().enumerate() {
            slow.say(format!("get long-{} key-{n}\r\n", n % 10).repeat(100));
            let mut some = [0; 1000];
            slow.stream.read_exact(&mut some).expect("an answer begins");
        }
        for n in 20..200 {
            c.request(format!("get key-{n}\r\n"), found(n));
        }
        // Half of them go on.
        for (n, slow) in slow.iter_mut().enumerate().take(10) {
            let one = format!("VALUE long-{n} 0 10000\r\n{long}\r\n{}", found(n));
            let all = one.repeat(100);
            slow.hear(&all[1000..]);
        }
        drop(slow);
        tier.server.stop();
    });
}

#[test]
fn hundreds_of_connections_read_at_once() {
    retried(|| {
        for threads in [1, 4] {
            let Some(tier) = Tier::new(&format!("-t {threads}")) else { return };
            store(&mut tier.server.connect(), 1000);
            let mut lost = HashSet::new();
            let mut clients: Vec<_> = (0..300).map(|_| tier.server.connect()).collect();
            for round in 0..3 {
                // More reads than a worker has tickets for.
                for (n, c) in clients.iter_mut().enumerate() {
                    let request = |i: usize| format!("get key-{}\r\n", (n * 7 + i * 13 + round) % 1000);
                    c.say((0..20).map(request).collect::<String>());
                }
                for (n, c) in clients.iter_mut().enumerate() {
                    for i in 0..20 {
                        let key = (n * 7 + i * 13 + round) % 1000;
                        let answer = c.hear_until("END\r\n");
                        if answer != found(key) {
                            assert_eq!(answer, "END\r\n", "the answer of key {key}");
                            lost.insert(key);
                        }
                    }
                }
            }
            let losses = tier.server.connect().losses() as usize;
            assert!(lost.len() <= 5 + losses, "{lost:?} are missing");
            tier.server.stop();
        }
    });
}

#[test]
fn servers_stop_while_flash_is_read_and_written() {
    let Some(folder) = folder() else { return };
    let engines = engines();
    for round in 0..6 {
        let path = folder.path().join("a");
        let engine = engines[round % engines.len()];
        let mut process = start(&format!("-m 8 -t 2 --engine {engine} {}", device(&path)));
        let address = process.address();
        store(&mut connect(address), 1000);
        let clients: Vec<_> = (0..4)
            .map(|client| {
                std::thread::spawn(move || {
                    let mut c = connect(address);
                    let mut buffer = [0; 1 << 16];
                    for n in 0.. {
                        let key = (n * 17 + client * 250) % 1000;
                        let requests = format!("get key-{key}\r\nset new-{n} 0 0 1000\r\n{}\r\n", value(n));
                        let sent = c.stream.write_all(requests.as_bytes());
                        if sent.is_err() || !matches!(c.stream.read(&mut buffer), Ok(1..)) {
                            return n;
                        }
                    }
                    0
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(50 + round as u64 * 40));
        let began = Instant::now();
        process.signal(Signal::TERM);
        assert!(process.wait().success(), "{}", process.log());
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert!(!process.log().contains("panicked"), "{}", process.log());
        for client in clients {
            assert!(client.join().expect("no panic") > 0, "it was served");
        }
    }
}

#[test]
fn timeouts_spare_clients_that_are_served() {
    retried(|| {
        let Some(tier) = Tier::new("-t 1 -o idle_timeout=1 --stall-timeout 1") else { return };
        let mut c = tier.server.connect();
        store(&mut c, 500);
        let began = Instant::now();
        let mut n = 0;
        while began.elapsed() < Duration::from_secs(4) {
            n += 1;
            let key = n * 31 % 500;
            c.request(
                format!("get key-{key}\r\ntouch key-{key} 0\r\n"),
                format!("{}TOUCHED\r\n", found(key)),
            );
        }
        assert_eq!((c.count("", "idle_kicks"), c.count("fabcache", "stalled_kicks")), (0, 0));
    });
}
