//! Packets for items on flash: answers as for items in memory.

use crate::common::{Answer, packet};
use crate::pair::Pair;
use crate::tier::retried;

const SET: u8 = 0x01;
const NOOP: u8 = 0x0a;

/// A request for the case's key: opcode, extras, value, and whether it names the item's CAS value.
struct Packet(u8, Vec<u8>, &'static [u8], bool);

fn plain(opcode: u8) -> Packet {
    Packet(opcode, Vec::new(), b"", false)
}

fn delta(opcode: u8, delta: u64, expiry: u32) -> Packet {
    let extras = [&delta.to_be_bytes()[..], &7u64.to_be_bytes(), &expiry.to_be_bytes()].concat();
    Packet(opcode, extras, b"", false)
}

fn store(opcode: u8, value: &'static [u8]) -> Packet {
    Packet(opcode, [9u32.to_be_bytes(), 100u32.to_be_bytes()].concat(), value, false)
}

fn cases() -> Vec<Vec<Packet>> {
    let expiry = |opcode| Packet(opcode, 50u32.to_be_bytes().to_vec(), b"", false);
    let with_cas = |packet: Packet| Packet(packet.0, packet.1, packet.2, true);
    let get = || plain(0x00);
    let long: &[u8] = &[b'x'; 60_000];
    let mut cases = Vec::new();
    for opcode in [0x00, 0x09, 0x0c, 0x0d] {
        cases.push(vec![plain(opcode), plain(opcode)]);
    }
    for opcode in [0x1c, 0x1d, 0x1e, 0x23, 0x24] {
        cases.push(vec![expiry(opcode), get()]);
    }
    for opcode in [0x01, 0x02, 0x03, 0x11, 0x12, 0x13] {
        cases.push(vec![store(opcode, b"new"), get()]);
        cases.push(vec![store(opcode, long), get()]);
        cases.push(vec![with_cas(store(opcode, b"new")), get(), with_cas(store(opcode, b"newer")), get()]);
    }
    for opcode in [0x0e, 0x0f, 0x19, 0x1a] {
        cases.push(vec![Packet(opcode, Vec::new(), b"new", false), get()]);
        cases.push(vec![Packet(opcode, Vec::new(), long, false), get()]);
        cases.push(vec![
            Packet(opcode, Vec::new(), b"new", true),
            get(),
            Packet(opcode, Vec::new(), b"x", true),
            get(),
        ]);
    }
    for opcode in [0x05, 0x06, 0x15, 0x16] {
        cases.push(vec![delta(opcode, 5, 0), get(), delta(opcode, 99_999, 50), get()]);
        cases.push(vec![with_cas(delta(opcode, 5, 0)), get()]);
    }
    for opcode in [0x04, 0x14] {
        cases.push(vec![plain(opcode), get(), plain(opcode)]);
        cases.push(vec![with_cas(plain(opcode)), get()]);
        cases.push(vec![get(), plain(opcode), store(0x02, b"new"), get()]);
    }
    cases
}

fn check(flags: &str) {
    let Some(mut pair) = Pair::new(flags) else { return };
    let cases = cases();
    let key = |n: usize| format!("case-{n}").into_bytes();
    let mut cas = Vec::new();
    for n in 0..cases.len() {
        let extras = [4u32.to_be_bytes(), 0u32.to_be_bytes()].concat();
        pair.say_to_both(&packet(SET, &extras, &key(n), b"42", 0));
        cas.push([&mut pair.flash, &mut pair.plain].map(|c| c.hear_packet().cas));
    }
    // The protocol of a connection is that of its first byte.
    pair.tier.server.connect().fill();
    let mut stats = pair.tier.server.connect();
    let before = stats.flash_reads();
    for (n, case) in cases.iter().enumerate() {
        let answers = [&mut pair.flash, &mut pair.plain].into_iter().zip(cas[n]).map(|(c, old)| {
            let requests = case.iter().map(|Packet(opcode, extras, value, names_cas)| {
                packet(*opcode, extras, &key(n), value, if *names_cas { old } else { 0 })
            });
            c.say(requests.chain([packet(NOOP, &[], &[], &[], 0)]).collect::<Vec<_>>().concat());
            let answers =
                std::iter::repeat_with(|| c.hear_packet()).take_while(|answer| answer.opcode != NOOP);
            // CAS values differ; whether they are the item's old one does not.
            answers
                .map(|answer| Answer {
                    cas: u64::from(answer.cas != 0) + u64::from(answer.cas == old),
                    ..answer
                })
                .collect::<Vec<_>>()
        });
        let [flash, plain] = <[_; 2]>::try_from(answers.collect::<Vec<_>>()).expect("two servers");
        let opcodes: Vec<u8> = case.iter().map(|packet| packet.0).collect();
        assert!(flash == plain, "to {opcodes:x?}, case {n}: on flash {flash:?}, in memory {plain:?}");
    }
    assert!(stats.flash_reads() > before + 10, "items were on flash");
    pair.stop();
}

#[test]
fn packets_answer_as_in_memory() {
    retried(|| check(""));
    retried(|| check("-M"));
}
