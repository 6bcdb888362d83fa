//! Requests for items on flash over UDP.

use std::time::{Duration, Instant};

use crate::common::{UdpClient, connect, serve};
use crate::tier::{device, folder, letters, retried};

#[test]
fn datagrams_wait_for_flash() {
    retried(|| {
        let Some(folder) = folder() else { return };
        for flags in ["-t 1", "-t 2 -M"] {
            let device = device(&folder.path().join(flags.replace(' ', "")));
            let server = serve(&format!("-U -1 -m 8 {device} {flags}"));
            let addresses = server.addresses();
            let (mut tcp, udp) = (connect(addresses[0]), UdpClient::new(addresses[1]));
            let value = |n: usize| String::from_utf8(letters(n, 100 + n * 20)).expect("letters");
            for n in 0..200 {
                tcp.request(format!("set k{n} 0 0 {}\r\n{}\r\n", value(n).len(), value(n)), "STORED\r\n");
            }
            tcp.fill();
            let before = tcp.flash_reads();
            let found = |n: usize| format!("VALUE k{n} 0 {}\r\n{}\r\n", value(n).len(), value(n));
            for n in 0..50 {
                udp.request(
                    n as u16,
                    format!("get k{n} k{} none\r\n", n + 1),
                    format!("{}{}END\r\n", found(n), found(n + 1)),
                );
            }
            let mut long = String::from_utf8(letters(1, 20_000)).expect("letters");
            for n in 50..100 {
                // Several requests in a datagram, changes among them.
                let requests =
                    format!("get k{n}\r\nappend k{n} 0 0 1\r\n!\r\nmg k{n} s\r\ndelete k{n}\r\nget k{n}\r\n");
                let answers =
                    format!("{}END\r\nSTORED\r\nHD s{}\r\nDELETED\r\nEND\r\n", found(n), value(n).len() + 1);
                udp.request(n as u16, requests, answers);
            }
            for n in 100..120 {
                // A long value.
                let append = format!("append k{n} 0 0 20000\r\n{long}\r\nmg k{n} s\r\n");
                udp.request(n as u16, append, format!("STORED\r\nHD s{}\r\n", value(n).len() + 20_000));
            }
            // Many at once.
            (120..180).for_each(|n| udp.say(n as u16, format!("get k{n}\r\n")));
            let mut answers: Vec<(u16, Vec<u8>)> = Vec::new();
            for _ in 120..150 {
                let mut buffer = [0; 2048];
                udp.0.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
                // Some may be dropped: more wait than may.
                let Ok(len) = udp.0.recv(&mut buffer) else { break };
                answers.push((u16::from_be_bytes([buffer[0], buffer[1]]), buffer[8..len].to_vec()));
            }
            assert!(answers.len() >= 20, "{} answers", answers.len());
            assert!(tcp.flash_reads() > before + 50, "items were on flash");
            // Stores wait for memory, and let others be served.
            let udp = UdpClient::new(addresses[1]);
            long.truncate(8000);
            let began = Instant::now();
            for n in 0..2000 {
                udp.request(n as u16, format!("set u{n} 0 0 8000\r\n{long}\r\n"), "STORED\r\n");
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
            server.stop();
        }
    });
}
