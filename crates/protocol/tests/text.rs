//! Classic text: each command, each refusal, and where decoding continues after it.

mod common;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::{decoder, request, said};
use fabcache_protocol::bounds::{FABRIC_NAME_MAX, LINE_MAX, MULTIGET_LINE_MAX, RUN_MAX};
use fabcache_protocol::plain::{PlainGets, PlainSets};
use fabcache_protocol::{
    Arithmetic, Command, Decoded, Decoder, Delete, Encoding, Exptime, FabricAttach, FabricMemory, Get,
    Limits, Protocol, Refusal, Reply, Request, Store, StoreMode, TextCommand, TextEncoding, Touch, Value,
    Words,
};

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";
const BAD_DATA: &str = "CLIENT_ERROR bad data chunk\r\n";

#[track_caller]
fn decodes_to(input: &[u8], command: Command<'_>) {
    assert_eq!(request(&mut decoder(), input).command, command, "{}", input.escape_ascii());
}

#[track_caller]
fn says(input: &str, answer: &str) {
    assert_eq!(said(input.as_bytes()), answer, "{}", input.escape_debug());
}

#[test]
fn get_decodes() {
    let mut decoder = decoder();
    let input = b"get a  bc \r\n";
    let encoding = TextEncoding { command: TextCommand::Get, ..TextEncoding::default() };
    for (at, used, key, is_last) in [(0, 5, &b"a"[..], false), (5, 7, b"bc", true)] {
        let get = Get { key, value: true, ..Get::default() };
        let request = Request {
            command: Command::Get(get),
            encoding: Encoding::Text(TextEncoding { key, is_last, ..encoding }),
        };
        assert_eq!(decoder.decode(&input[at..]), Decoded::Request { consumed: used, request });
    }
    assert_eq!(decoder.decode(b""), Decoded::Incomplete { more: 1 });
}

#[test]
fn gets_and_gat_decode() {
    for (input, cas, touch) in [
        (&b"gets k"[..], true, None),
        (b"gat -1 k", false, Some(Exptime(-1))),
        (b"gats 2147483647 k", true, Some(Exptime(i32::MAX.into()))),
    ] {
        let input = [input, b"\n"].concat();
        let mut decoder = decoder();
        let Decoded::Request { consumed, request } = decoder.decode(&input) else { panic!() };
        assert_eq!(consumed, input.len());
        let get = Get { key: b"k", value: true, touch, ..Get::default() };
        assert_eq!(request.command, Command::Get(get));
        let encoding =
            TextEncoding { command: TextCommand::Get, key: b"k", cas, noreply: false, is_last: true };
        assert_eq!(request.encoding, Encoding::Text(encoding));
    }
}

#[test]
fn get_replies_encode() {
    says("get hit miss hit2\r\n", "VALUE hit 7 2\r\nhi\r\nVALUE hit2 7 2\r\nhi\r\nEND\r\n");
    says("gets hit\r\n", "VALUE hit 7 2 42\r\nhi\r\nEND\r\n");
    says("get hit noreply\r\n", "VALUE hit 7 2\r\nhi\r\nEND\r\n");
    says("get hit\ra\r\n", "VALUE hit\ra 7 2\r\nhi\r\nEND\r\n");
    says("get hit\t\0\u{e4}\r\n", "VALUE hit\t\0\u{e4} 7 2\r\nhi\r\nEND\r\n");
}

#[test]
fn invalid_gets_are_rejected() {
    for bad in ["get", "get ", "gets", "gat", "gats", "gat 0", "gat x"] {
        says(&format!("{bad}\r\nmn\r\n"), &format!("{BAD_FORMAT}MN\r\n"));
    }
    for exptime in ["x", "+1", "2147483648", "-2147483649"] {
        says(&format!("gat {exptime} k\r\n"), "CLIENT_ERROR invalid exptime argument\r\n");
    }
    // One overlong key at any position rejects the whole command.
    let long = "k".repeat(251);
    for line in [format!("get {long}"), format!("gets hit {long} hit"), format!("gat 0 hit {long}")] {
        says(&format!("{line}\r\nmn\r\n"), &format!("{BAD_FORMAT}MN\r\n"));
    }
    says(&format!("get {}\r\n", "k".repeat(250)), "END\r\n");
}

#[test]
fn storage_commands_decode() {
    let value = Value::Inline(b"va\r\nl");
    for (word, mode) in [
        ("set", StoreMode::Set),
        ("add", StoreMode::Add),
        ("replace", StoreMode::Replace),
        ("append", StoreMode::Append),
        ("prepend", StoreMode::Prepend),
    ] {
        let store = Store { key: b"k", mode, flags: 7, exptime: Exptime(-9), value, ..Store::default() };
        decodes_to(format!("{word} k 7 -9 5\r\nva\r\nl\r\n").as_bytes(), Command::Store(store));
    }
    let store = Store { key: b"k", value, compare: Some(u64::MAX), ..Store::default() };
    decodes_to(b"cas k 0 0 5 18446744073709551615\r\nva\r\nl\r\n", Command::Store(store));
}

#[test]
fn storage_numbers_are_checked() {
    let flags = |input: &[u8]| match request(&mut decoder(), input).command {
        Command::Store(store) => Some((store.flags, store.exptime.0)),
        _ => None,
    };
    assert_eq!(flags(b"set k 4294967295 0 0\n\r\n"), Some((u32::MAX, 0)));
    assert_eq!(flags(b"set k 4294967297 0 0\n\r\n"), Some((1, 0)), "cut to 32 bits");
    assert_eq!(flags(b"set k +3 +4 0\n\r\n"), Some((3, 4)));
    assert_eq!(flags(b"set k 0 2147483647 0\n\r\n"), Some((0, 2_147_483_647)));
    assert_eq!(flags(b"set k 0 2147483648 0\n\r\n"), Some((0, -2_147_483_648)), "cut to 32 bits");
    assert_eq!(flags(b"set k 0 4294967297 0\n\r\n"), Some((0, 1)), "cut to 32 bits");
    for line in [
        "set k -1 0 1",
        "set k 18446744073709551616 0 1",
        "set k x 0 1",
        "set k 0 x 1",
        "set k 0 9223372036854775808 1",
        "cas k 0 0 1",
        "cas k 0 0 1 x",
        "cas k 0 0 1 -1",
        "cas k 0 0 1 +1",
    ] {
        // The length is valid, so the data is consumed.
        says(&format!("{line}\r\nx\r\nmn\r\n"), &format!("{BAD_FORMAT}MN\r\n"));
    }
    let long = "k".repeat(251);
    says(&format!("set {long} 0 0 1\r\nx\r\nmn\r\n"), &format!("{BAD_FORMAT}MN\r\n"));
    says(&format!("set {long} 0 0 1 noreply\r\nx\r\nmn\r\n"), "MN\r\n");
}

#[test]
fn storage_lengths_are_checked() {
    for line in [
        "set",
        "set k",
        "set k 0 0",
        "add k 0 0 x",
        "set k 0 0 -1",
        "set k 0 0 +1",
        "set k 0 0 2147483646",
        "cas k 0 0",
    ] {
        // Without a length the data is decoded as a command.
        says(&format!("{line}\r\nversion\r\n"), &format!("{BAD_FORMAT}VERSION 1.6.45\r\n"));
    }
    let mut decoder = decoder();
    let Decoded::Request { consumed: 24, request } = decoder.decode(b"set k 0 0 2147483645 0\r\nx") else {
        panic!()
    };
    let Command::Store(store) = request.command else { panic!() };
    assert_eq!(store.value, Value::Streamed { len: 2_147_483_645 });
}

#[test]
fn data_blocks_must_end_with_crlf() {
    says("set k 0 0 0\r\n\r\n", "STORED\r\n");
    says("set k 0 0 1\nx\r\n", "STORED\r\n");
    says("set k 0 0 1 more words here\r\nx\r\n", "STORED\r\n");
    says("set no 0 0 1\r\nx\r\n", "NOT_STORED\r\n");
    says("set k 0 0 1\nx\nmn\n", &format!("{BAD_DATA}{BAD_FORMAT}"));
    says("set k 0 0 1\r\nx\n\r\nmn\r\n", &format!("{BAD_DATA}{BAD_FORMAT}MN\r\n"));
    says("set k 0 0 1\r\nxyzversion\r\nmn\r\n", &format!("{BAD_DATA}VERSION 1.6.45\r\nMN\r\n"));
    says("set k 0 0 3\r\nab\r\nmn\r\nmn\r\n", &format!("{BAD_DATA}{BAD_FORMAT}MN\r\n"));
    says("set k 0 0 1 noreply\r\nx\r\nmn\r\n", "MN\r\n");
    says("set k 0 0 1 noreply\r\nxyzmn\r\n", "MN\r\n");
    says("set noreply 0 0 1\r\nx\r\n", "NOT_STORED\r\n");
    says("set k 0 0 x noreply\r\nmn\r\n", "MN\r\n");
    says("set k 0 0 noreply\r\nmn\r\n", "MN\r\n");
    says("cas k 0 0 noreply\r\nmn\r\n", &format!("{BAD_FORMAT}MN\r\n"));
    says("cas k 0 0 1 noreply\r\nx\r\nmn\r\n", "MN\r\n");
    says("set k 0 noreply\r\nmn\r\n", &format!("{BAD_FORMAT}MN\r\n"));
}

#[test]
fn long_values_are_streamed() {
    let mut decoder = Decoder::new(Some(Protocol::Text), Limits { inline_value_max: 3 });
    let Decoded::Request { consumed: 13, request } = decoder.decode(b"set k 0 0 4\r\n") else { panic!() };
    assert!(matches!(request.command, Command::Store(Store { value: Value::Streamed { len: 4 }, .. })));
    assert_eq!(decoder.decode(b""), Decoded::Incomplete { more: 1 });
    assert_eq!(decoder.decode(b"ab"), Decoded::Value { consumed: 2, bytes: b"ab" });
    assert_eq!(decoder.decode(b"cd\r"), Decoded::Value { consumed: 2, bytes: b"cd" });
    assert_eq!(decoder.decode(b"\r"), Decoded::Incomplete { more: 1 });
    assert_eq!(decoder.decode(b"\r\nmn"), Decoded::ValueEnd { consumed: 2, intact: true });
    // The same with a wrong end, and rejected by the server.
    decoder.decode(b"set k 0 0 4\r\n");
    decoder.decode(b"abcd");
    assert_eq!(decoder.decode(b"xymn\r\n"), Decoded::ValueEnd { consumed: 2, intact: false });
    decoder.decode(b"set k 0 0 4\r\n");
    decoder.decode(b"ab");
    decoder.discard_value();
    assert_eq!(decoder.decode(b"cd\r"), Decoded::Skipped { consumed: 3 });
    assert_eq!(decoder.decode(b"\nmn\r\n"), Decoded::Skipped { consumed: 1 });
    assert_eq!(request_of(&mut decoder, b"mn\r\n"), Command::Noop);
    decoder.discard_value();
    assert_eq!(request_of(&mut decoder, b"mn\r\n"), Command::Noop);
}

#[track_caller]
fn request_of<'a>(decoder: &'a mut Decoder, input: &'a [u8]) -> Command<'a> {
    request(decoder, input).command
}

#[test]
fn delete_decodes() {
    // Other words are ignored; old clients send a delay there.
    for line in [
        "delete k",
        "delete k 0",
        "delete k 10",
        "delete k JUNK",
        "delete k b c d e",
        "delete k noreply x",
        "delete k noreply",
        "delete k 0 noreply",
        "delete k JUNK noreply",
    ] {
        decodes_to(
            format!("{line}\r\n").as_bytes(),
            Command::Delete(Delete { key: b"k", ..Delete::default() }),
        );
        let answer = if line.ends_with("noreply") { "MN\r\n" } else { "DELETED\r\nMN\r\n" };
        says(&format!("{line}\r\nmn\r\n"), answer);
    }
    says("delete\r\n", BAD_FORMAT);
    says("delete noreply\r\nmn\r\n", "MN\r\n");
    says(&format!("delete {}\r\n", "k".repeat(251)), BAD_FORMAT);
}

#[test]
fn incr_and_decr_decode() {
    let expected = Arithmetic { key: b"k", delta: 5, ..Arithmetic::default() };
    decodes_to(b"incr k 5\r\n", Command::Arithmetic(expected.clone()));
    decodes_to(b"decr k 5 x\r\n", Command::Arithmetic(Arithmetic { decrement: true, ..expected }));
    says("incr k 1\r\n", "12\r\n");
    says("incr no 1\r\n", "NOT_FOUND\r\n");
    says("incr k 1 noreply\r\nmn\r\n", "MN\r\n");
    for delta in ["x", "-1", "+1", "18446744073709551616", "1.0"] {
        says(&format!("incr k {delta}\r\n"), "CLIENT_ERROR invalid numeric delta argument\r\n");
        says(&format!("decr k {delta} noreply\r\nmn\r\n"), "MN\r\n");
    }
    says("incr\r\n", BAD_FORMAT);
    says("decr k\r\n", BAD_FORMAT);
    says("incr k noreply\r\nmn\r\n", "MN\r\n");
    says("incr noreply 1\r\n", "NOT_FOUND\r\n");
    says(&format!("incr {} 1\r\n", "k".repeat(251)), BAD_FORMAT);
}

#[test]
fn touch_decodes() {
    decodes_to(b"touch k -3\r\n", Command::Touch(Touch { key: b"k", exptime: Exptime(-3) }));
    says("touch k 0\r\n", "TOUCHED\r\n");
    says("touch no 0\r\n", "NOT_FOUND\r\n");
    says("touch k 0 noreply\r\nmn\r\n", "MN\r\n");
    for exptime in ["x", "+1", "2147483648", "000000000001"] {
        says(&format!("touch k {exptime}\r\n"), "CLIENT_ERROR invalid exptime argument\r\n");
    }
    says("touch k x noreply\r\nmn\r\n", "MN\r\n");
    says("touch k noreply\r\nmn\r\n", "MN\r\n");
    says("touch\r\n", BAD_FORMAT);
    says("touch k\r\n", BAD_FORMAT);
    says(&format!("touch {} 0\r\n", "k".repeat(251)), BAD_FORMAT);
}

#[test]
fn admin_commands_decode() {
    decodes_to(b"version\r\n", Command::Version);
    decodes_to(b"version  x\n", Command::Version);
    decodes_to(b"quit x\r\n", Command::Quit);
    decodes_to(b"refresh_certs\r\n", Command::RefreshCerts);
    decodes_to(b"stats\r\n", Command::Stats(Words::default()));
    decodes_to(b"shutdown\r\n", Command::Shutdown { mode: None });
    decodes_to(b"shutdown  graceful \r\n", Command::Shutdown { mode: Some(b"graceful") });
    decodes_to(b"shutdown a b\r\n", Command::Shutdown { mode: Some(b"a b") });
    decodes_to(b"cache_memlimit 64 x\r\n", Command::CacheMemlimit(64));
    decodes_to(b"verbosity 1 x y z\r\n", Command::Verbosity(1));
    decodes_to(b"flush_all\r\n", Command::Flush(Exptime(0)));
    decodes_to(b"flush_all -1 x\r\n", Command::Flush(Exptime(-1)));
    decodes_to(b"flush_all 10 noreply\r\n", Command::Flush(Exptime(10)));
    says("quit\r\nversion\r\n", "<closed>");
    says("shutdown noreply\r\n", "OK\r\n");
}

#[test]
fn shared_memory_commands_decode() {
    decodes_to(b"shm attach 1 3\r\n", Command::ShmAttach { channel: 1, region: 3 });
    for wrong in [
        "shm attach\r\n",
        "shm attach 1\r\n",
        "shm attach x 3\r\n",
        "shm accessed\r\n",
        "shm accessed abc\r\n",
    ] {
        says(wrong, "CLIENT_ERROR bad command line format\r\n");
    }
    for unknown in ["shm\r\n", "shm detach 1 3\r\n"] {
        says(unknown, "ERROR\r\n");
    }
    let accesses = |input: &[u8]| match request(&mut decoder(), input).command {
        Command::ShmAccessed(accesses) => accesses.iter().collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    // Nine bytes each: a hash of 1, read 8 times; all ones, read 255 times.
    assert_eq!(accesses(b"shm accessed AQAAAAAAAAAI////////////\r\n"), [(1, 8), (u64::MAX, 255)]);
    assert_eq!(accesses(b"shm accessed AQAAAAAAAAAI!!!!!!!!!!!!AQAAAAAAAAAI\r\n"), [(1, 8)]);
}

#[test]
fn fabric_commands_decode() {
    decodes_to(b"fabric hello 1 3\r\n", Command::FabricHello { channel: 1, region: 3 });
    // Extra words are ignored, as after memcached's commands.
    decodes_to(b"fabric hello 9 3 more x\r\n", Command::FabricHello { channel: 9, region: 3 });
    let staging = FabricMemory { address: 0, key: u64::MAX, bytes: 1 << 20 };
    let landing = FabricMemory { address: u64::MAX - 7, key: 0, bytes: 7 };
    let attach = |name, token, credits| {
        let attach = FabricAttach::new(name, token, credits, staging, landing);
        Command::FabricAttach(attach.expect("sound"))
    };
    let memory = "0 18446744073709551615 1048576 18446744073709551608 0 7";
    let line = format!("fabric attach AAECAw== 0123456789ABCdef 65535 {memory}\r\n");
    decodes_to(line.as_bytes(), attach(b"AAECAw==", 0x0123_4567_89ab_cdef, u16::MAX));
    let none = FabricMemory { address: 0, key: 0, bytes: 0 };
    let without = FabricAttach::new(b"AAECAw==", 1, 2, none, none).expect("sound");
    decodes_to(b"fabric attach AAECAw== 1 2 0 0 0 0 0 0\r\n", Command::FabricAttach(without));
    decodes_to(b"fabric attach AAECAw== 1 2 0 0 0 0 0 0 more\r\n", Command::FabricAttach(without));
    let longest = STANDARD.encode([7; FABRIC_NAME_MAX]);
    let line = format!("fabric attach {longest} 0 1 {memory}\r\n");
    decodes_to(line.as_bytes(), attach(longest.as_bytes(), 0, 1));
    let too_long = STANDARD.encode([7; FABRIC_NAME_MAX + 1]);
    for wrong in [
        "hello".into(),
        "hello 1".into(),
        "hello 1 x".into(),
        "hello -1 3".into(),
        "hello 1 18446744073709551616".into(),
        "attach".into(),
        format!("attach {too_long} 0 1 {memory}"),
        format!("attach AAECA 0 1 {memory}"),
        format!("attach AA!CAw== 0 1 {memory}"),
        format!("attach AA== x 1 {memory}"),
        format!("attach AA== +1 1 {memory}"),
        format!("attach AA== 00000000000000000 1 {memory}"),
        format!("attach AA== 0 0 {memory}"),
        format!("attach AA== 0 65536 {memory}"),
        "attach AA== 0 1 0 1 2 3 4".into(),
        "attach AA== 0 1 18446744073709551615 1 1 3 4 5".into(),
        "attach AA== 0 1 0 1 1 3 4 18446744073709551613".into(),
        "attach AA== 0 1 0 -1 1 3 4 5".into(),
    ] {
        says(&format!("fabric {wrong}\r\n"), "CLIENT_ERROR bad command line format\r\n");
    }
    for unknown in ["fabric\r\n", "fabric bye 1 3\r\n"] {
        says(unknown, "ERROR\r\n");
    }
}

#[test]
fn admin_commands_take_words() {
    let words = |input: &[u8]| match request(&mut decoder(), input).command {
        Command::Stats(words)
        | Command::Watch(words)
        | Command::LruCrawler(words)
        | Command::Lru(words)
        | Command::Slabs(words)
        | Command::Extstore(words) => {
            words.map(|word| String::from_utf8_lossy(word).into_owned()).collect::<Vec<_>>().join("|")
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(words(b"stats  cachedump 1  2 \r\n"), "cachedump|1|2");
    assert_eq!(words(b"stats noreply\r\n"), "noreply");
    assert_eq!(words(b"watch fetchers evictions\r\n"), "fetchers|evictions");
    assert_eq!(words(b"lru_crawler metadump all\r\n"), "metadump|all");
    assert_eq!(words(b"lru mode flat noreply\r\n"), "mode|flat");
    assert_eq!(words(b"slabs automove 1 noreply\r\n"), "automove|1");
    assert_eq!(words(b"lru_crawler metadump all noreply\r\n"), "metadump|all|noreply");
    assert_eq!(words(b"slabs xnoreply\r\n"), "xnoreply");
    assert_eq!(words(b"extstore item_age 5\r\n"), "item_age|5");
    let many = format!("stats {}\r\n", "w ".repeat(300));
    assert_eq!(words(many.as_bytes()).matches('w').count(), 22, "23 words in all");
}

#[test]
fn invalid_admin_commands_are_rejected() {
    says("verbosity\r\n", BAD_FORMAT);
    says("verbosity x\r\n", BAD_FORMAT);
    says("verbosity -1\r\n", BAD_FORMAT);
    says("verbosity noreply\r\nmn\r\n", "MN\r\n");
    says("verbosity 0 noreply\r\nmn\r\n", "MN\r\n");
    says("flush_all x\r\n", "CLIENT_ERROR invalid exptime argument\r\n");
    says("flush_all x noreply\r\nmn\r\n", "MN\r\n");
    says("flush_all noreply\r\nmn\r\n", "MN\r\n");
    says("flush_all noreply 0\r\n", "CLIENT_ERROR invalid exptime argument\r\n");
    says("cache_memlimit\r\n", "ERROR\r\n");
    says("cache_memlimit x\r\n", "ERROR\r\n");
    says("cache_memlimit 4294967296\r\n", "ERROR\r\n");
    says("flush_all 2147483648\r\n", "CLIENT_ERROR invalid exptime argument\r\n");
    says("cache_memlimit 64 noreply\r\nmn\r\n", "MN\r\n");
    says("slabs automove 1 noreply\r\nmn\r\n", "MN\r\n");
}

#[test]
fn unknown_commands_are_errors() {
    for line in [
        "VERSION",
        "Get a",
        "foo",
        "get\ta",
        "mgfoo",
        "mx",
        "quitx",
        "bget a",
        "misbehave",
        "debugtime p",
        "debugitem lock a",
        "config get cluster",
        "     ",
        "\rversion",
        "version\r",
        "version\t",
        "foo HTTP/1.1 x",
        "foo xHTTP/1.1",
        "HTTP/1.1",
        " HTTP/1.1",
        // Spaces may precede few commands.
        " get hit",
        "  set k 0 0 2",
        " mg hit v",
        " version",
        " stats",
        " quit",
        " shm attach 1 3",
    ] {
        says(&format!("{line}\r\nmn\r\n"), "ERROR\r\nMN\r\n");
    }
    // Too short to be any command.
    for line in ["\r\n", "\n", "a\r\n", "a\n", "ab\n", " \r\n", "mg\n"] {
        says(&format!("{line}mn\r\n"), &format!("{BAD_FORMAT}MN\r\n"));
    }
    says("mn\nmn\r\n", &format!("{BAD_FORMAT}MN\r\n"));
    says("foo noreply\r\nmn\r\n", "MN\r\n");
    says(" verbosity 1\r\n  flush_all\r\n", "OK\r\nOK\r\n");
    for line in ["GET / HTTP/1.1", "foo HTTP/", " foo HTTP/1.0"] {
        says(&format!("mn\r\n{line}\r\nmn\r\n"), "MN\r\n<closed>");
    }
    says("get a HTTP/1.1\r\n", "END\r\n");
}

#[test]
fn overlong_lines_are_rejected() {
    let mut decoder = decoder();
    let spaces = vec![b' '; LINE_MAX + 1];
    assert_eq!(decoder.decode(&spaces[1..]), Decoded::Incomplete { more: 1 });
    assert_eq!(decoder.decode(&spaces), Decoded::Fatal);
    // With and without the newline received.
    says(&format!("set {}\r\n", "k".repeat(LINE_MAX)), "<closed>");
    says(&format!("foo {}\n", "k".repeat(LINE_MAX - 4)), "ERROR\r\n");
    for name in ["get", "gets", "gat 0", "gats 0"] {
        let keys = "key ".repeat(LINE_MAX);
        says(&format!("{name} {keys}"), "");
        says(&format!("{name} {keys}\r\nmn\r\n"), "END\r\nMN\r\n");
        says(&format!("{}{name} {keys}\r\n", " ".repeat(100)), "ERROR\r\n");
        says(&format!("{}{name} {keys}\r\n", " ".repeat(101)), "<closed>");
    }
    let endless = [b"get ", &vec![b'k'; MULTIGET_LINE_MAX][..]].concat();
    assert_eq!(self::decoder().decode(&endless[..MULTIGET_LINE_MAX]), Decoded::Incomplete { more: 1 });
    assert_eq!(self::decoder().decode(&endless), Decoded::Fatal);
}

#[test]
fn long_lines_are_scanned_once() {
    // Byte by byte: rescanning earlier bytes would take minutes.
    let line = [b"get ", &b"key ".repeat(200_000)[..]].concat();
    let mut decoder = decoder();
    for end in 1..=line.len() {
        assert_eq!(decoder.decode(&line[..end]), Decoded::Incomplete { more: 1 });
    }
}

#[test]
fn many_words_are_accepted() {
    // The 23rd word is the last that counts.
    says(&format!("set k 0 0 1 {}noreply\r\nx\r\n", "w ".repeat(17)), "");
    says(&format!("set k 0 0 1 {}noreply\r\nx\r\n", "w ".repeat(18)), "STORED\r\n");
}

#[test]
fn first_byte_selects_the_protocol() {
    let mut decoder = decoder();
    assert_eq!(decoder.protocol(), None);
    decoder.decode(b"");
    assert_eq!(decoder.protocol(), None);
    decoder.decode(b"m");
    assert_eq!(decoder.protocol(), Some(Protocol::Text));
    let mut decoder = self::decoder();
    decoder.decode(b"\x80");
    assert_eq!(decoder.protocol(), Some(Protocol::Binary));
    let mut fixed = Decoder::new(Some(Protocol::Text), Limits { inline_value_max: 0 });
    assert_eq!(request(&mut fixed, b"\x80\x0b\r\n").command, Command::Refused(Refusal::UnknownCommand));
}

#[test]
fn replies_encode() {
    let said = |encoding: TextEncoding<'_>, reply: Reply<'_>| {
        let mut out = Vec::new();
        Encoding::Text(encoding).reply(&reply, &mut out);
        String::from_utf8(out).expect("text")
    };
    let plain = TextEncoding::default();
    for (reply, answer) in [
        (Reply::Exists, "EXISTS\r\n"),
        (Reply::NotFound, "NOT_FOUND\r\n"),
        (Reply::TooLarge, "SERVER_ERROR object too large for cache\r\n"),
        (Reply::OutOfMemory, "SERVER_ERROR out of memory\r\n"),
        (Reply::NonNumeric, "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        (Reply::Ok, "OK\r\n"),
        (Reply::Stat { name: b"pid", value: b"12" }, "STAT pid 12\r\n"),
        (Reply::StatsEnd, "END\r\n"),
        (Reply::Line(b"SERVER_ERROR: shutdown not enabled"), "SERVER_ERROR: shutdown not enabled\r\n"),
        (Reply::AuthFailure, "CLIENT_ERROR authentication failure\r\n"),
        (Reply::Bye, ""),
        (Reply::Miss, ""),
        (
            Reply::Refused(Refusal::Server("out of memory writing stats")),
            "SERVER_ERROR out of memory writing stats\r\n",
        ),
        (Reply::Refused(Refusal::Error("Too many open connections")), "ERROR Too many open connections\r\n"),
    ] {
        assert_eq!(said(plain, reply), answer);
        assert_eq!(said(TextEncoding { noreply: true, ..plain }, reply), "");
    }
    for (command, answer) in [
        (TextCommand::Get, ""),
        (TextCommand::Store, "SERVER_ERROR out of memory storing object\r\n"),
        (TextCommand::Arithmetic, "SERVER_ERROR out of memory\r\n"),
    ] {
        assert_eq!(said(TextEncoding { command, ..plain }, Reply::OutOfMemory), answer);
    }
}

mod auth {
    use super::*;

    #[track_caller]
    fn shut(input: &[u8]) -> String {
        let mut decoder = decoder();
        decoder.require_auth(true);
        let mut out = Vec::new();
        let mut start = 0;
        loop {
            match decoder.decode(&input[start..]) {
                Decoded::Request { consumed, request } => {
                    start += consumed;
                    let reply = match request.command {
                        Command::Authenticate { user: b"user", password: b"pass word" } => {
                            Reply::Stored(common::ITEM)
                        }
                        Command::Authenticate { .. } => Reply::AuthFailure,
                        Command::Refused(refusal) => Reply::Refused(refusal),
                        Command::Noop => Reply::Noop,
                        other => panic!("{other:?}"),
                    };
                    request.encoding.reply(&reply, &mut out);
                    if matches!(reply, Reply::Stored(_)) {
                        decoder.require_auth(false);
                    }
                }
                Decoded::Fatal => out.extend_from_slice(b"<closed>"),
                Decoded::Incomplete { .. } => {}
                other => panic!("{other:?}"),
            }
            if start == input.len() || out.ends_with(b"<closed>") {
                return String::from_utf8(out).expect("text");
            }
        }
    }

    #[test]
    fn authentication_request_decodes() {
        assert_eq!(shut(b"set any x y 14\r\nuser pass word\r\nmn\r\n"), "STORED\r\nMN\r\n");
        assert_eq!(shut(b"set  a 0 0 14 noreply\nuser pass word\r\nmn\r\n"), "STORED\r\nMN\r\n");
    }

    #[test]
    fn packets_before_authentication_are_rejected_in_binary() {
        let mut decoder = Decoder::new(Some(Protocol::Text), Limits { inline_value_max: 1024 });
        decoder.require_auth(true);
        // A quiet get of `a`.
        let packet = [&[0x80, 9, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4][..], &[0; 8], b"a"].concat();
        for len in 0..24 {
            assert!(matches!(decoder.decode(&packet[..len]), Decoded::Incomplete { .. }), "{len}");
        }
        let Decoded::Request { consumed: 24, request } = decoder.decode(&packet) else { panic!("a refusal") };
        assert_eq!(request.command, Command::Refused(Refusal::Status(0x20)));
        let mut out = Vec::new();
        request.encoding.reply(&Reply::Refused(Refusal::Status(0x20)), &mut out);
        assert_eq!(out[..16], [0x81, 9, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 13, 1, 2, 3, 4]);
        assert_eq!(&out[24..], b"Auth failure.");
        assert_eq!(decoder.decode(b"mn\r\n"), Decoded::Fatal);
    }

    #[test]
    fn commands_before_authentication_are_rejected() {
        let unauthenticated = "CLIENT_ERROR unauthenticated\r\n";
        for line in [
            "get a",
            "quit",
            "mn",
            "",
            "GET / HTTP/1.0",
            "set a 0 0",
            "set a 0 0 x",
            "set a 0 0 -1",
            "add a 0 0 9",
            "setx a 0 0 9",
            " set a 0 0 9",
            "\u{80}\n",
            "version",
            "set a 0 0 4294967296",
        ] {
            let lines = line.matches('\n').count() + 1;
            assert_eq!(shut(format!("{line}\r\n").as_bytes()), unauthenticated.repeat(lines), "{line}");
        }
        assert_eq!(
            shut(b"set a 0 0 9\r\nuser nope\r\nmn\r\n"),
            format!("CLIENT_ERROR authentication failure\r\n{unauthenticated}")
        );
        assert_eq!(shut(b"set a 0 0 8\r\nuserpass\r\n"), "CLIENT_ERROR bad authentication token format\r\n");
        assert_eq!(shut(b"set a 0 0 9\r\nuser pass\nx"), "CLIENT_ERROR bad command line termination\r\n");
        let longest = [b"set a 0 0 16384\r\n", &vec![b'x'; 16384][..], b"\r\n"].concat();
        assert_eq!(shut(&longest), "CLIENT_ERROR bad authentication token format\r\n");
        // The block of an overlong one is no block, and the connection goes on.
        assert_eq!(
            shut(b"set a 0 0 16385\r\nuser pass\r\nset a 0 0 14\r\nuser pass word\r\n"),
            format!("CLIENT_ERROR auth token too long\r\n{unauthenticated}STORED\r\n")
        );
        let endless = [b"get ", &vec![b'x'; LINE_MAX][..]].concat();
        assert_eq!(shut(&endless), "<closed>");
    }
}

/// Returns the keys of the plain reads, or of the plain writes, at the front of `input`, and what follows them.
fn run_of<'a>(decoder: &mut Decoder, input: &'a [u8], sets: bool, limit: usize) -> (Vec<&'a [u8]>, &'a [u8]) {
    let (keys, used): (Vec<&[u8]>, usize) = if sets {
        let mut run = PlainSets::new(limit);
        let used = decoder.plain_sets(input, &mut run);
        (run.requests().iter().map(|set| set.key).collect(), used)
    } else {
        let mut run = PlainGets::new(limit);
        let used = decoder.plain_gets(input, &mut run);
        (run.requests().iter().map(|get| get.key).collect(), used)
    };
    (keys, &input[used..])
}

/// Builds a decoder of a connection that has begun to speak text.
fn text_decoder() -> Decoder {
    let mut decoder = decoder();
    assert_eq!(request(&mut decoder, b"mn\r\n").command, Command::Noop);
    decoder
}

#[test]
fn plain_requests_come_in_runs_of_one_kind() {
    let mut decoder = text_decoder();
    let input =
        b"get a\r\ngets b c\nset d 1 2 3\r\nabc\r\nms e 1\r\nx\r\nset f 0 0 0 noreply\r\n\r\nget g\r\nmn\r\n";
    let (none, _) = run_of(&mut decoder, input, true, 32);
    assert!(none.is_empty());
    let (gets, rest) = run_of(&mut decoder, input, false, 32);
    assert_eq!(gets, [b"a", b"b", b"c"]);
    let (sets, rest) = run_of(&mut decoder, rest, true, 32);
    assert_eq!(sets, [b"d", b"e", b"f"]);
    let (gets, rest) = run_of(&mut decoder, rest, false, 32);
    assert_eq!((gets, rest), (vec![&b"g"[..]], &b"mn\r\n"[..]));
}

#[test]
fn meta_requests_with_flags_come_in_runs() {
    let mut decoder = text_decoder();
    let input = b"mg a v\r\nget b c\r\nmg d v f c s t h k q O\nmg e q O1234567890123456789012345678901 v\r\n\
        ms f 1 T0 F0 MS c\r\nx\r\nms g 0 c q k s O T2147483647 F4294967295\n\r\nset h 0 0 0\r\n\r\nmn\r\n";
    let (gets, rest) = run_of(&mut decoder, input, false, 32);
    assert_eq!(gets, [b"a", b"b", b"c", b"d", b"e"]);
    let (sets, rest) = run_of(&mut decoder, rest, true, 32);
    assert_eq!((sets, rest), (vec![&b"f"[..], b"g", b"h"], &b"mn\r\n"[..]));
}

#[test]
fn runs_end_at_their_limit_even_within_a_line() {
    let mut decoder = text_decoder();
    let line = format!("get{}\r\nget last\r\n", " k".repeat(48));
    let (first, rest) = run_of(&mut decoder, line.as_bytes(), false, 100);
    assert_eq!((first.len(), rest.len()), (RUN_MAX, 2 * 16 + 2 + 10));
    // The line is not over: another kind must wait.
    assert_eq!(run_of(&mut decoder, rest, true, 32).0.len(), 0);
    let (second, rest) = run_of(&mut decoder, rest, false, 16);
    assert_eq!((second.len(), rest), (16, &b"get last\r\n"[..]));
    let (third, rest) = run_of(&mut decoder, rest, false, 16);
    assert_eq!((third, rest.len()), (vec![&b"last"[..]], 0));
}

#[test]
fn unusual_requests_are_left_to_the_general_path() {
    let long = format!("get {}\r\n", "k".repeat(251));
    for input in [
        "get  a\r\n",
        "get a \r\n",
        "get \r\n",
        "get\r\n",
        "get a",
        "gat 0 a\r\n",
        " get a\r\n",
        "GET a\r\n",
        "set a -1 0 1\r\nx\r\n",
        "set a 0 -1 1\r\nx\r\n",
        "set a 0 0 1 x\r\nx\r\n",
        "set a 0 0 2\r\nx\r\n",
        "set a 0 0 1 \r\nx\r\n",
        "set a 0 0 1\r\nx",
        "set  a 0 0 1\r\nx\r\n",
        "add a 0 0 1\r\nx\r\n",
        "set a 4294967296 0 1\r\nx\r\n",
        "set a 0 2147483648 1\r\nx\r\n",
        "set a\nb 0 0 1\r\nx\r\n",
        "ms a 1 MA\r\nx\r\n",
        "ms a 1 MSet\r\nx\r\n",
        "ms a 1 T-1\r\nx\r\n",
        "ms a 1 F\r\nx\r\n",
        "ms a 1 T1 T2\r\nx\r\n",
        "ms a 1 C5\r\nx\r\n",
        "ms YQ== 1 b\r\nx\r\n",
        "ms a 1 q \r\nx\r\n",
        "mg a\r\n",
        "mg a k\r\n",
        "mg a v v\r\n",
        "mg a vx\r\n",
        "mg a  v\r\n",
        "mg a v \r\n",
        "mg a v l\r\n",
        "mg a v u\r\n",
        "mg a v T1\r\n",
        "mg a v N1\r\n",
        "mg a v R1\r\n",
        "mg a v C5\r\n",
        "mg YQ== v b\r\n",
        "mg a v",
        "mg a v Ox",
        "mg\r\n",
        "mg a v O12345678901234567890123456789012\r\n",
        &long,
    ] {
        for sets in [false, true] {
            let (keys, rest) = run_of(&mut text_decoder(), input.as_bytes(), sets, 32);
            assert_eq!((keys.len(), rest), (0, input.as_bytes()), "{input:?}");
        }
    }
}

#[test]
fn runs_need_a_connection_that_is_let_in() {
    let limits = Limits { inline_value_max: 16 };
    let mut shut = Decoder::new(Some(Protocol::Text), limits);
    shut.require_auth(true);
    let undecided = Decoder::new(None, limits);
    let binary = Decoder::new(Some(Protocol::Binary), limits);
    let datagram = Decoder::datagram(Some(Protocol::Text), limits);
    for mut decoder in [shut, undecided, binary, datagram, Decoder::mixed(limits)] {
        assert_eq!(run_of(&mut decoder, b"get a\r\n", false, 32).0.len(), 0);
        assert_eq!(run_of(&mut decoder, b"set a 0 0 1\r\nx\r\n", true, 32).0.len(), 0);
    }
}
