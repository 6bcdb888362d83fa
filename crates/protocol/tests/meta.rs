//! Meta text: each command, each flag, each refusal, and the replies.

mod common;

use common::{ITEM, decoder, is_meta, request, said};
use fabcache_protocol::{
    Arithmetic, Command, Decoded, Decoder, Delete, Encoding, Exptime, Get, Item, Limits, MetaCommand,
    MetaEncoding, Refusal, Reply, SavedEncoding, Store, StoreMode, Value,
};

#[track_caller]
fn says(input: &str, answer: &str) {
    assert_eq!(said(input.as_bytes()), answer, "{}", input.escape_debug());
}

#[track_caller]
fn get(line: &str, expected: Get<'_>) {
    let input = format!("mg {line}\r\n");
    assert_eq!(request(&mut decoder(), input.as_bytes()).command, Command::Get(expected), "{line}");
}

#[track_caller]
fn store(line: &str, expected: Store<'_>) {
    let input = format!("ms {line}\r\nhi\r\n");
    let expected = Store { value: Value::Inline(b"hi"), ..expected };
    assert_eq!(request(&mut decoder(), input.as_bytes()).command, Command::Store(expected), "{line}");
}

#[track_caller]
fn delete(line: &str, expected: Delete<'_>) {
    let input = format!("md {line}\r\n");
    assert_eq!(request(&mut decoder(), input.as_bytes()).command, Command::Delete(expected), "{line}");
}

#[track_caller]
fn arithmetic(line: &str, expected: Arithmetic<'_>) {
    let input = format!("ma {line}\r\n");
    let command = Command::Arithmetic(expected);
    assert_eq!(request(&mut decoder(), input.as_bytes()).command, command, "{line}");
}

fn ttl(seconds: i64) -> Option<Exptime> {
    Some(Exptime(seconds))
}

#[test]
fn get_flags_decode() {
    let plain = Get { key: b"k", ..Get::default() };
    get("k", plain.clone());
    get("k s t c f l h k q Oopaque P L", plain.clone());
    get("k v", Get { value: true, ..plain.clone() });
    get("k vx", Get { value: true, ..plain.clone() });
    get("k u", Get { no_bump: true, ..plain.clone() });
    get("k E7", Get { new_cas: Some(7), ..plain.clone() });
    get("k E0", plain.clone());
    get("k T30", Get { touch: ttl(30), ..plain.clone() });
    get("k T-1 t", Get { touch: ttl(-1), created_ttl: ttl(-1), ..plain.clone() });
    get("k t T30", Get { touch: ttl(30), ttl_before_touch: true, ..plain.clone() });
    get("k N30 t", Get { vivify: ttl(30), created_ttl: ttl(30), ..plain.clone() });
    get("k t N30", Get { vivify: ttl(30), ..plain.clone() });
    get("k N30 T60", Get { vivify: ttl(60), touch: ttl(60), ..plain.clone() });
    get("k T60 N30", Get { vivify: ttl(30), touch: ttl(60), ..plain.clone() });
    get("k R30", Get { recache: ttl(30), ..plain.clone() });
    get("k T9 R30", Get { recache: ttl(30), touch: ttl(9), ..plain.clone() });
    let first = Get { recache: ttl(30), touch: ttl(9), recache_before_touch: true, ..plain.clone() };
    get("k R30 T9", first);
    // Flags of other commands are accepted and ignored.
    get("k I x F1 D1 J1 Mz", plain.clone());
    get("k C1", Get { compare: Some(1), ..plain });
    get("Zm9v b", Get { key: b"foo", ..Get::default() });
}

#[test]
fn store_flags_decode() {
    let plain = Store { key: b"k", ..Store::default() };
    store("k 2", plain.clone());
    store("k 02", plain.clone());
    store("k 2 c k s q Oopaque P L t f v h l u D1 J1 R1", plain.clone());
    store("k 2 F4294967295", Store { flags: u32::MAX, ..plain.clone() });
    store("k 2 T-1", Store { exptime: Exptime(-1), ..plain.clone() });
    store("k 2 E9", Store { new_cas: Some(9), ..plain.clone() });
    for (flag, mode) in [
        ("MS", StoreMode::Set),
        ("ME", StoreMode::Add),
        ("MA", StoreMode::Append),
        ("MP", StoreMode::Prepend),
        ("MR", StoreMode::Replace),
        ("MRest", StoreMode::Replace),
    ] {
        store(&format!("k 2 {flag}"), Store { mode, ..plain.clone() });
    }
    store("k 2 C0", Store { compare: Some(0), ..plain.clone() });
    store("k 2 C5 I", Store { compare: Some(5), invalidate: true, ..plain.clone() });
    store("k 2 I", plain.clone());
    store("k 2 MR C5", Store { compare: Some(5), ..plain.clone() });
    store("k 2 ME C5 I", Store { mode: StoreMode::Add, ..plain.clone() });
    store("k 2 MA C5 I", Store { mode: StoreMode::Append, compare: Some(5), ..plain.clone() });
    store("k 2 MP C0", Store { mode: StoreMode::Prepend, ..plain.clone() });
    store("k 2 N30", plain.clone());
    store("k 2 MA N30", Store { mode: StoreMode::Append, vivify: ttl(30), ..plain.clone() });
    store("Zm9v 2 b", Store { key: b"foo", ..plain });
}

#[test]
fn delete_flags_decode() {
    let plain = Delete { key: b"k", ..Delete::default() };
    delete("k", plain.clone());
    delete("k q k Oopaque v s", plain.clone());
    delete("k C0", Delete { compare: Some(0), ..plain.clone() });
    delete("k C5 E6", Delete { compare: Some(5), new_cas: Some(6), ..plain.clone() });
    delete("k I T30", Delete { stale: true, touch: ttl(30), ..plain.clone() });
    delete("k x F3", Delete { drop_value: true, flags: 3, ..plain });
    delete("Zm9v b", Delete { key: b"foo", ..Delete::default() });
}

#[test]
fn arithmetic_flags_decode() {
    let plain = Arithmetic { key: b"k", delta: 1, ..Arithmetic::default() };
    arithmetic("k", plain.clone());
    arithmetic("k t c v k q s Oopaque", plain.clone());
    arithmetic("k MI", plain.clone());
    arithmetic("k M+", plain.clone());
    arithmetic("k MDecrement", Arithmetic { decrement: true, ..plain.clone() });
    arithmetic("k M-", Arithmetic { decrement: true, ..plain.clone() });
    arithmetic("k D0", Arithmetic { delta: 0, ..plain.clone() });
    arithmetic("k D18446744073709551615", Arithmetic { delta: u64::MAX, ..plain.clone() });
    arithmetic("k J5", plain.clone());
    arithmetic("k J5 N60", Arithmetic { create: Some((5, Exptime(60))), ..plain.clone() });
    let created = Arithmetic { create: Some((0, Exptime(9))), touch: ttl(9), ..plain.clone() };
    arithmetic("k N60 T9", created);
    arithmetic("k t T9", Arithmetic { touch: ttl(9), ttl_before_touch: true, ..plain.clone() });
    arithmetic("k C0", plain.clone());
    arithmetic("k C5 E6", Arithmetic { compare: Some(5), new_cas: Some(6), ..plain });
    arithmetic("Zm9v b", Arithmetic { key: b"foo", delta: 1, ..Arithmetic::default() });
}

#[test]
fn noop_and_me_decode() {
    let mut decoder = decoder();
    let noop = request(&mut decoder, b"mn and words\r\n");
    assert_eq!(noop.command, Command::Noop);
    assert!(is_meta(&noop.encoding, MetaCommand::Noop));
    assert_eq!(request(&mut decoder, b"me k x y\r\n").command, Command::Inspect(b"k"));
    says("me k !\r\n", "CLIENT_ERROR bad command line format\r\n");
    assert_eq!(request(&mut decoder, b"me Zm9v b\r\n").command, Command::Inspect(b"foo"));
    says("mn\r\n", "MN\r\n");
    says("me hit\r\n", "ME hit exp=60 la=3 cas=42 fetch=yes cls=1 size=64\r\n");
    says("me Zm9v b\r\n", "ME foo exp=60 la=3 cas=42 fetch=yes cls=1 size=64\r\n");
}

#[test]
fn invalid_keys_are_rejected() {
    let bad = "CLIENT_ERROR bad command line format\r\n";
    let long = "k".repeat(251);
    for letter in ["g", "d", "a", "e"] {
        for key in ["", " ", &long] {
            let bad = if letter == "a" && *key == long {
                "CLIENT_ERROR invalid or duplicate flag\r\n"
            } else {
                bad
            };
            says(&format!("m{letter} {key}\r\nmn\r\n"), &format!("{bad}MN\r\n"));
        }
    }
    says(&format!("ma {long} !\r\n"), bad);
    for rest in ["", " k", " k x", " k -1", " k +2", " k S2", " k 2147483646", &format!(" {long} x")] {
        says(&format!("ms{rest}\r\nmn\r\n"), &format!("{bad}MN\r\n"));
    }
    // With a length the data is consumed.
    says(&format!("ms {long} 2\r\nhi\r\nmn\r\n"), &format!("{bad}MN\r\n"));
    says("me !! b\r\n", bad);
    for key in ["!!!!", "Zm9", "===="] {
        let decoding = "CLIENT_ERROR error decoding key\r\n";
        says(&format!("mg {key} b\r\n"), decoding);
        says(&format!("md {key} q b\r\n"), decoding);
        says(&format!("ms {key} 2 q b\r\nhi\r\nmn\r\n"), &format!("{decoding}MN\r\n"));
        says(&format!("ma {key} b\r\n"), "CLIENT_ERROR invalid or duplicate flag\r\n");
    }
    // Errors count from `b` on, except that of `F`.
    for (flags, refusal) in [
        ("Tx b", "error decoding key"),
        ("b Tx", "bad token in command line format"),
        ("b Fx", "error decoding key"),
        ("Fx b", "error decoding key"),
    ] {
        says(&format!("mg !!! {flags}\r\n"), &format!("CLIENT_ERROR {refusal}\r\n"));
    }
    says("mg Zm9v Tx b\r\n", "CLIENT_ERROR bad token in command line format\r\n");
    // Other spellings of a key are answered in the canonical one.
    for key in ["bWlzcw==", "bWlzcx==", "bW!lzcw==", "bWlzcw==YWFh"] {
        says(&format!("mg {key} b k\r\n"), "EN kbWlzcw== b\r\n");
        says(&format!("md {key} b k\r\n"), "HD kbWlzcw== b\r\n");
        says(&format!("ms {key} 2 b k\r\nhi\r\n"), "HD kbWlzcw== b\r\n");
    }
    let longest = "YWFh".repeat(62);
    says(&format!("mg {longest} b\r\n"), "EN\r\n");
    says(&format!("mg {longest}YWFh b\r\n"), bad);
}

#[test]
fn invalid_flags_are_rejected() {
    let many = "k ".repeat(19);
    for (flags, refusal) in [
        ("z", "invalid flag"),
        ("Q", "invalid flag"),
        ("1", "invalid flag"),
        ("[", "invalid flag"),
        ("s s", "duplicate flag"),
        ("O1 O2", "duplicate flag"),
        ("Tx", "bad token in command line format"),
        ("T", "bad token in command line format"),
        ("N", "bad token in command line format"),
        ("Rx", "bad token in command line format"),
        ("Cx", "bad token in command line format"),
        ("C-1", "bad token in command line format"),
        ("C+1", "bad token in command line format"),
        ("C18446744073709551616", "bad token in command line format"),
        ("C00000000000000000000001", "bad token in command line format"),
        ("T2147483648", "bad token in command line format"),
        ("N2147483648", "bad token in command line format"),
        ("R+1", "bad token in command line format"),
        ("E", "bad token in command line format"),
        ("Tx z", "invalid flag"),
        ("Fx", "bad command line format"),
        ("F-1", "bad command line format"),
        ("F4294967296", "bad command line format"),
        ("Fx Tx", "bad token in command line format"),
        ("Dx", "invalid numeric delta value"),
        ("Jx", "invalid numeric initial value"),
        (&many, "options flags are too long"),
    ] {
        let refusal = format!("CLIENT_ERROR {refusal}\r\n");
        says(&format!("mg k {flags} q\r\n"), &refusal);
        says(&format!("md k {flags} q\r\n"), &refusal);
        says(&format!("ms k 2 {flags} q\r\nhi\r\nmn\r\n"), &format!("{refusal}MN\r\n"));
        says(&format!("ma k {flags} q\r\n"), "CLIENT_ERROR invalid or duplicate flag\r\n");
    }
    // What no flag begins with makes the whole line badly formed, whatever else is wrong; there is no data then.
    let bad = "CLIENT_ERROR bad command line format\r\n";
    for flags in ["!", "~", "{", "@", "\t", "\u{7f}", "\u{80}", "-", "z v v !", "s s !", &format!("{many} !")]
    {
        for command in ["mg k", "md k", "ma k", "ms k 2"] {
            says(&format!("{command} {flags} q\r\nmn\r\n"), &format!("{bad}MN\r\n"));
        }
    }
    // Only 23 words are looked at.
    says(&format!("mg k {many}k k !\r\n"), "CLIENT_ERROR options flags are too long\r\n");
    // 20 words with the command are the maximum.
    let most = "s t c f l h k u x v O1 T1 N1 R1 C1 E1 F1 I";
    says(&format!("mg k {most}\r\n"), "EN kk O1\r\n");
    says(&format!("mg k {most} q\r\n"), "CLIENT_ERROR options flags are too long\r\n");
}

#[test]
fn invalid_modes_and_opaques_are_rejected() {
    for mode in ["M", "Mz", "Me", "Ms", "MI", "M+"] {
        says(&format!("ms k 2 {mode}\r\nhi\r\nmn\r\n"), "CLIENT_ERROR invalid mode for ms M token\r\nMN\r\n");
    }
    for mode in ["M", "Mz", "Mi", "Md", "MS"] {
        says(&format!("ma k {mode}\r\n"), "CLIENT_ERROR invalid mode for ma M token\r\n");
    }
    let (fits, long) = ("o".repeat(31), "o".repeat(32));
    let too_long = "CLIENT_ERROR opaque token too long\r\n";
    says(&format!("mg miss O{fits}\r\n"), &format!("EN O{fits}\r\n"));
    for command in ["mg", "md", "ma"] {
        says(&format!("{command} k O{long} q\r\n"), too_long);
    }
    says(&format!("ms k 2 O{long}\r\nhi\r\nmn\r\n"), &format!("{too_long}MN\r\n"));
}

#[test]
fn data_blocks_decode() {
    let bad = "CLIENT_ERROR bad data chunk\r\n";
    says("ms k 2\nhi\r\n", "HD\r\n");
    says("ms k 2 q\r\nhix\r\nmn\r\n", &format!("{bad}CLIENT_ERROR bad command line format\r\nMN\r\n"));
    says("ms k 3 MS\r\nhi\r\nmn\r\nmn\r\n", &format!("{bad}CLIENT_ERROR bad command line format\r\nMN\r\n"));
    says("ms no 2 q\r\nhi\r\n", "NS\r\n");
    says("ms k 2 q\r\nhi\r\nmn\r\n", "MN\r\n");
}

#[test]
fn long_values_are_streamed() {
    let mut decoder = Decoder::new(None, Limits { inline_value_max: 1 });
    let mut saved = SavedEncoding::new();
    let Decoded::Request { consumed: 23, request } = decoder.decode(b"ms Zm9v 3 b k s O5 c \r\n") else {
        panic!()
    };
    let Command::Store(store) = &request.command else { panic!() };
    assert_eq!((store.key, store.value), (&b"foo"[..], Value::Streamed { len: 3 }));
    saved.save(&request.encoding);
    assert_eq!(decoder.decode(b"bar\r\n"), Decoded::Value { consumed: 3, bytes: b"bar" });
    assert_eq!(decoder.decode(b"\r\n"), Decoded::ValueEnd { consumed: 2, intact: true });
    let mut out = Vec::new();
    saved.encoding().reply(&Reply::Exists, &mut out);
    saved.encoding().reply(&Reply::Stored(Item { len: 9, ..ITEM }), &mut out);
    assert_eq!(out, b"EX kZm9v b s3 O5 c0\r\nHD kZm9v b s9 O5 c42\r\n");
}

fn encoding(command: MetaCommand, flags: &'static [u8], quiet: bool) -> Encoding<'static> {
    Encoding::Meta(MetaEncoding {
        command,
        key: b"key",
        flags,
        quiet,
        value: false,
        binary_key: false,
        value_len: 5,
    })
}

#[track_caller]
fn answers(command: MetaCommand, flags: &'static [u8], reply: Reply<'_>, answer: &str, quiet: &str) {
    for (silent, answer) in [(false, answer), (true, quiet)] {
        let mut out = Vec::new();
        encoding(command, flags, silent).reply(&reply, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), answer, "{command:?} {reply:?}");
    }
}

#[test]
fn get_replies_encode() {
    let all = b"k O1 q h l f c t s u T5";
    let item = "kkey O1 h1 l3 f7 c42 t60 s2";
    let get = MetaCommand::Get;
    let answer = format!("HD {item}\r\n");
    answers(get, all, Reply::Found(ITEM), &answer, &answer);
    answers(get, all, Reply::Miss, "EN kkey O1\r\n", "");
    answers(get, b"", Reply::Miss, "EN\r\n", "");
    let error = "SERVER_ERROR out of memory\r\n";
    answers(get, all, Reply::OutOfMemory, error, error);
    for (item, answer) in [
        (Item { ttl: None, ..ITEM }, "HD t-1\r\n"),
        (Item { won: true, ..ITEM }, "HD t60 W\r\n"),
        (Item { stale: true, won: true, ..ITEM }, "HD t60 X W\r\n"),
        (Item { stale: true, token_sent: true, ..ITEM }, "HD t60 Z X\r\n"),
        (Item { token_sent: true, fetched: false, ..ITEM }, "HD t60 Z\r\n"),
    ] {
        answers(get, b" t ", Reply::Found(item), answer, answer);
    }
    says("mg hit v k\r\n", "VA 2 khit\r\nhi\r\n");
    says("mg hit q v  O12  t\r\n", "VA 2 O12 t60\r\nhi\r\n");
    // A hit returns its key as it was stored.
    says("mg aGl0 k b v c\r\n", "VA 2 khit c42\r\nhi\r\n");
    let stored = Reply::Found(Item { binary_key: true, ..ITEM });
    answers(get, b"k", stored, "HD ka2V5 b\r\n", "HD ka2V5 b\r\n");
    says("mg bWlzcw== b k\r\n", "EN kbWlzcw== b\r\n");
    says("mg miss q\r\nmn\r\n", "MN\r\n");
}

#[test]
fn change_replies_encode() {
    let all = b"k O1 h l f c t s u T5";
    let set = MetaCommand::Set;
    answers(set, all, Reply::Stored(ITEM), "HD kkey O1 c42 s2\r\n", "");
    let code = |code: &str| format!("{code} kkey O1 c0 s5\r\n");
    answers(set, all, Reply::NotStored, &code("NS"), &code("NS"));
    answers(set, all, Reply::Exists, &code("EX"), &code("EX"));
    answers(set, all, Reply::NotFound, &code("NF"), &code("NF"));
    let large = "SERVER_ERROR object too large for cache\r\n";
    answers(set, all, Reply::TooLarge, large, large);
    let memory = "SERVER_ERROR out of memory storing object\r\n";
    answers(set, all, Reply::OutOfMemory, memory, memory);
    let delete = MetaCommand::Delete;
    answers(delete, all, Reply::Deleted, "HD kkey O1\r\n", "");
    answers(delete, all, Reply::NotFound, "NF kkey O1\r\n", "NF kkey O1\r\n");
    answers(delete, all, Reply::Exists, "EX kkey O1\r\n", "EX kkey O1\r\n");
    answers(delete, all, Reply::NotStored, "NS kkey O1\r\n", "NS kkey O1\r\n");
    let number = MetaCommand::Arithmetic;
    answers(number, all, Reply::Number(12, ITEM), "HD kkey O1 c42 t60\r\n", "");
    answers(number, all, Reply::NotFound, "NF kkey O1\r\n", "NF kkey O1\r\n");
    answers(number, all, Reply::Exists, "EX kkey O1\r\n", "EX kkey O1\r\n");
    let text = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    answers(number, all, Reply::NonNumeric, text, text);
    let client = "CLIENT_ERROR x\r\n";
    answers(number, all, Reply::Refused(Refusal::Client("x")), client, client);
    says("ma k v c k\r\n", "VA 2 c42 kk\r\n12\r\n");
    says("ma k v q\r\nmn\r\n", "MN\r\n");
    answers(MetaCommand::Inspect, b"b", Reply::Miss, "EN\r\n", "EN\r\n");
    let item = Item { ttl: None, fetched: false, ..ITEM };
    let line = "ME key exp=-1 la=3 cas=42 fetch=no cls=5 size=100\r\n";
    answers(MetaCommand::Inspect, b"", Reply::Inspected { item, size: 100, class: 5 }, line, line);
}
