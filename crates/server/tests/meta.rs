//! Meta text: every command, its flags and codes, over a real connection.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{connect, serve};

#[test]
fn meta_get_supports_every_flag() {
    let server = serve("");
    let mut c = server.connect();
    c.request("mg a v\r\nmg a\r\nmg a v q\r\nmg a k O1 q\r\nmn\r\n", "EN\r\nEN\r\nMN\r\n");
    c.request("ms a 2 F5 T105\r\nhi\r\n", "HD\r\n");
    c.request("mg a\r\n", "HD\r\n");
    c.ask_with_seconds("mg a s v f c t k O77\r\n", 105, "VA 2 s2 f5 c1 t# ka O77\r\nhi\r\n");
    c.request("ms b 0\r\n\r\nmg b v h l t\r\nmg b h\r\n", "HD\r\nVA 0 h0 l0 t-1\r\n\r\nHD h1\r\n");
    c.request(
        "ms d 1\r\nx\r\nmg d u\r\nmg d h u\r\nmg d h\r\nmg d h\r\n",
        "HD\r\nHD\r\nHD h0\r\nHD h0\r\nHD h1\r\n",
    );
    c.request(
        "ms Zm9v 3 b\r\nbar\r\nmg Zm9v b k v\r\nget foo\r\n",
        "HD\r\nVA 3 kZm9v b\r\nbar\r\nVALUE foo 0 3\r\nbar\r\nEND\r\n",
    );
    c.request("me a\r\n", "");
    let line = c.hear_until("\r\n");
    let is_told = |line: &str| {
        let rest = line.strip_prefix("ME a exp=10")?;
        let rest = rest.strip_prefix(['3', '4', '5'])?.strip_prefix(" la=")?;
        Some(rest.strip_prefix(['0', '1', '2'])?.starts_with(" cas=1 fetch=yes cls=1 size="))
    };
    assert_eq!(is_told(&line), Some(true), "{line}");
    c.request("me missing\r\nmg a T50 t\r\nmg missing T50\r\n", "EN\r\nHD t50\r\nEN\r\n");
}

#[test]
fn meta_get_leaves_out_a_known_value() {
    let server = serve("");
    let mut c = server.connect();
    c.request("ms a 2 E7 T100\r\nhi\r\n", "HD\r\n");
    c.request("mg a C7 v c s\r\nmg a v C7 c q\r\n", "HD c7 s2\r\nHD c7\r\n");
    c.request("mg a C8 v c\r\nmg a C0 v\r\nmg a C7\r\n", "VA 2 c7\r\nhi\r\nVA 2\r\nhi\r\nHD\r\n");
    c.request("mg none C7 v\r\nmg none C7 v q\r\nmn\r\n", "EN\r\nMN\r\n");
    // A created item counts as well.
    c.request("mg new C5 E5 v N30 c\r\nmg new C6 v N30\r\n", "HD c5 W\r\nVA 0 Z\r\n\r\n");
    // It is an access, and changes the item like any other.
    c.request("ms b 2 E9\r\nhi\r\nmg b C9 v h T40 t\r\nmg b h t\r\n", "HD\r\nHD h0 t40\r\nHD h1 t40\r\n");
    c.request("md b I E12\r\nmg b C12 v\r\nmg b C12 v\r\n", "HD\r\nHD X W\r\nHD Z X\r\n");
    c.request("mg b C12 v T-1\r\nmg b\r\n", "HD Z X\r\nEN\r\n");
    let long = "x".repeat(100_000);
    c.request(format!("ms long 100000 E3\r\n{long}\r\n"), "HD\r\n");
    c.request("mg long C3 v s\r\n", "HD s100000\r\n");
    c.request("mg long C4 v\r\nmn\r\n", format!("VA 100000\r\n{long}\r\nMN\r\n"));
    // Without CAS values all are 0.
    let server = serve("-C");
    let mut c = server.connect();
    c.request("ms a 2\r\nhi\r\nmg a C0 v\r\nmg a C1 v\r\n", "HD\r\nHD\r\nVA 2\r\nhi\r\n");
    c.request("mg a C0 v T-1\r\nmg a\r\n", "HD\r\nEN\r\n");
    c.request("ms a 2\r\nhi\r\ncas a 0 0 1 0\r\nx\r\n", "HD\r\nEXISTS\r\n");
}

#[test]
fn cas_of_0_never_matches() {
    let server = serve("");
    let mut c = server.connect();
    c.request("ms a 3 F5\r\nabc\r\n", "HD\r\n");
    for line in ["C0", "I C0", "C0 MR", "C0 MR I"] {
        c.request(format!("ms a 2 {line}\r\nhi\r\nmg a v f\r\n"), "EX\r\nVA 3 f5\r\nabc\r\n");
        c.request(format!("ms none 2 {line}\r\nhi\r\n"), "NF\r\n");
    }
    c.request("cas a 0 0 1 0\r\nx\r\nms a 1 C0 MA\r\nd\r\nmg a v\r\n", "EXISTS\r\nHD\r\nVA 4\r\nabcd\r\n");
    // An item that is created has no CAS value to compare with, and appending is no cas in the statistics.
    c.request("ms new 1 C5 MP N0\r\nx\r\nms a 1 C5 MA\r\nx\r\nms no 1 C5 MA\r\nx\r\n", "HD\r\nEX\r\nNS\r\n");
    assert_eq!((c.count("", "cas_hits"), c.count("", "cas_badval"), c.count("", "cas_misses")), (0, 5, 4));
}

#[test]
fn win_stale_and_vivify_flags_work() {
    let server = serve("");
    let mut c = server.connect();
    c.request("mg new N35 v t\r\n", "VA 0 t35 W\r\n\r\n");
    c.ask_with_seconds("mg new N35 v t\r\n", 35, "VA 0 t# Z\r\n\r\n");
    c.request("ms new 1 T100\r\nx\r\nmg new v\r\n", "HD\r\nVA 1\r\nx\r\n");
    c.request(
        "mg new R30 v\r\nmg new R130 v\r\nmg new R130 v\r\n",
        "VA 1\r\nx\r\nVA 1 W\r\nx\r\nVA 1 Z\r\nx\r\n",
    );
    c.request("ms s 1 T100\r\nx\r\n", "HD\r\n");
    c.request("md s I T35\r\n", "HD\r\n");
    c.ask_with_seconds("mg s v t\r\n", 35, "VA 1 t# X W\r\nx\r\n");
    c.ask_with_seconds("mg s v t\r\n", 35, "VA 1 t# Z X\r\nx\r\n");
    c.request("ms s 1 C99999 I\r\ny\r\nms s 1 C1 I\r\ny\r\n", "EX\r\nHD\r\n");
    c.request("ms s 1\r\nz\r\nmg s v\r\n", "HD\r\nVA 1\r\nz\r\n");
}

#[test]
fn meta_set_supports_every_mode() {
    let server = serve("");
    let mut c = server.connect();
    c.request("ms a 1 ME\r\n1\r\nms a 1 ME\r\n2\r\n", "HD\r\nNS\r\n");
    c.request("ms a 1 MA\r\n3\r\nms a 1 MP\r\n0\r\nmg a v\r\n", "HD\r\nHD\r\nVA 3\r\n013\r\n");
    c.request("ms x 1 MA\r\n3\r\nms x 1 MR\r\n3\r\nms x 1 MA N65\r\n3\r\n", "NS\r\nNS\r\nHD\r\n");
    c.ask_with_seconds("mg x v t\r\n", 65, "VA 1 t#\r\n3\r\n");
    c.request("ms a 1 b\r\nx\r\n", "CLIENT_ERROR error decoding key\r\n");
    c.request("ms a 1 Mz\r\nx\r\n", "CLIENT_ERROR invalid mode for ms M token\r\n");
    c.request("ms a 1 C9\r\nx\r\nms missing 1 C9\r\nx\r\n", "EX\r\nNF\r\n");
    c.request("ms a 1 E1234 c\r\nx\r\nmg a c\r\nms a 1 C1234\r\ny\r\n", "HD c1234\r\nHD c1234\r\nHD\r\n");
    c.request("ms a 1 q\r\nx\r\nms a 1 q ME\r\nx\r\nmn\r\n", "NS\r\nMN\r\n");
    c.request(
        "ms a 1\r\nabcd\r\nmn\r\n",
        "CLIENT_ERROR bad data chunk\r\nCLIENT_ERROR bad command line format\r\nMN\r\n",
    );
}

#[test]
fn meta_arithmetic_and_delete_work() {
    let server = serve("");
    let mut c = server.connect();
    c.request(
        "ma n\r\nma n N0 J10 v\r\nma n v\r\nma n MD D5 v t\r\n",
        "NF\r\nVA 2\r\n10\r\nVA 2\r\n11\r\nVA 1 t-1\r\n6\r\n",
    );
    c.request("ma n T90 t\r\nma n q\r\nma n D9 q v\r\nma missing q\r\nmn\r\n", "HD t90\r\nNF\r\nMN\r\n");
    c.request(
        "ma n C99999\r\nma n E77 c\r\nms t 1\r\nx\r\nma t\r\n",
        "EX\r\nHD c77\r\nHD\r\nCLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
    );
    c.request(
        "md n C99999\r\nmd n q\r\nmd n\r\nmd n q\r\nmd n O5 k\r\nmn\r\n",
        "EX\r\nNF\r\nNF\r\nNF O5 kn\r\nMN\r\n",
    );
    c.request("ms v 5 F9 T100\r\nhello\r\nmd v x\r\nmg v v f t\r\n", "HD\r\nHD\r\nVA 0 f0 t-1\r\n\r\n");
    // The result is a new item, without time to live, marks and the token.
    c.request("ms x 5 F9 T100\r\nhello\r\nmd x x I\r\nmg x v f t\r\n", "HD\r\nHD\r\nVA 0 f0 t-1 X W\r\n\r\n");
    c.request("md x x F3\r\nmg x v f h\r\n", "HD\r\nVA 0 f3 h0\r\n\r\n");
}

#[test]
fn meta_errors_match_memcached() {
    let server = serve("");
    let mut c = server.connect();
    let long = "k".repeat(251);
    for (sent, answer) in [
        ("mg\r\n", "CLIENT_ERROR bad command line format\r\n"),
        (&format!("mg {long}\r\n"), "CLIENT_ERROR bad command line format\r\n"),
        ("mg a v v\r\n", "CLIENT_ERROR duplicate flag\r\n"),
        ("mg a z\r\n", "CLIENT_ERROR invalid flag\r\n"),
        ("mg a !\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("mg a Tx\r\n", "CLIENT_ERROR bad token in command line format\r\n"),
        (&format!("mg a O{}\r\n", "o".repeat(40)), "CLIENT_ERROR opaque token too long\r\n"),
        ("mg a v a b c d e f g h i j k l m n o p q r s t\r\n", "CLIENT_ERROR options flags are too long\r\n"),
        ("ms a x\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("mn\r\n", "MN\r\n"),
    ] {
        c.request(sent, answer);
    }
}

#[test]
fn item_touched_to_expire_is_removed_alone() {
    for options in ["-t 4", "-t 4 -C"] {
        let server = serve(options);
        let address = server.address();
        let done = AtomicBool::new(false);
        let (stored, taken) = std::thread::scope(|scope| {
            let take = || {
                let mut c = connect(address);
                let mut taken = 0;
                loop {
                    let last = done.load(Ordering::Acquire);
                    c.say("mg k T-1 v\r\n".repeat(50));
                    c.say("mn\r\n");
                    let hits = c.hear_until("MN\r\n").matches("VA ").count();
                    taken += hits;
                    if last && hits == 0 {
                        return taken;
                    }
                }
            };
            let takers = [scope.spawn(take), scope.spawn(take), scope.spawn(take)];
            let mut c = connect(address);
            let mut stored = 0;
            for round in 0..200 {
                for number in 0..50 {
                    c.say(format!("add k 0 0 4\r\n{:04}\r\n", round * 50 + number));
                }
                c.say("mn\r\n");
                stored += c.hear_until("MN\r\n").lines().filter(|line| *line == "STORED").count();
            }
            done.store(true, Ordering::Release);
            (stored, takers.map(|taker| taker.join().expect("it counts")).iter().sum::<usize>())
        });
        assert_eq!(stored, taken, "{options}");
    }
}
