//! Each command on an item on flash answers as on one in memory.

use crate::pair::Pair;
use crate::tier::retried;

/// What precedes a case's item going to flash, and the requests then. `{k}` is its key, `{c}` its CAS value.
struct Case {
    /// Flags of the `ms` that stores it.
    flags: &'static str,
    value: Vec<u8>,
    /// Requests while it is in memory.
    before: &'static str,
    /// Requests while it is on flash, the first of which reads it there.
    then: Vec<u8>,
}

fn case(then: &str) -> Case {
    with("", "42", then)
}

fn with(flags: &'static str, value: &str, then: &str) -> Case {
    Case { flags, value: value.into(), before: "", then: then.into() }
}

fn stale(before: &'static str, then: &str) -> Case {
    Case { before, ..with(" T500", "old", then) }
}

const ALL: &str = "mg {k} t f s c h l k O123 v\r\n";

/// Requests for one item; each of these begins with the item on flash.
fn reads() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        "get {k}\r\n",
        "gets {k}\r\n",
        "get none {k} none\r\n",
        "get {k} {k} {k}\r\n",
        "gets {k} none {k}\r\n",
        "gat 100 {k}\r\nmg {k} t v\r\n",
        "gats 0 {k}\r\ngats 0 {k}\r\n",
        "gat -1 {k}\r\nget {k}\r\n",
        "gat 77 none {k} none\r\nmg {k} t h\r\n",
        "mg {k}\r\n",
        "mg {k} v\r\n",
        "mg {k} q v\r\nmg none q v\r\n",
        "mg {k} s v k q O9\r\n",
        "mg {k} h\r\nmg {k} h\r\nmg {k} h\r\n",
        "mg {k} h t l u v\r\nmg {k} h v\r\nmg {k} h\r\n",
        "mg {k} s c f k\r\n",
        "mg {k} E77 c v\r\nmg {k} c v\r\n",
        "mg {k} N30 t c v\r\nmg {k} t v\r\n",
        "mg {k} N30 E5 T90 t c v\r\nmg {k} t v\r\n",
        "mg {k} T90 t v\r\nmg {k} t v h\r\n",
        "mg {k} t T90 v\r\nmg {k} t v h l\r\n",
        "mg {k} T-1 v\r\nmg {k} v\r\n",
        "mg {k} T-1\r\nmg {k} v\r\n",
        "mg {k} R30 t v\r\nmg {k} R30 v\r\n",
        "mg {k} C{c} v s c\r\n",
        "mg {k} C{c} v q\r\nmg {k} h\r\n",
        "mg {k} C1 v c\r\n",
        "mg {k} C{c} v T50 t\r\nmg {k} t v\r\n",
        "touch {k} 100\r\nmg {k} t h v\r\n",
        "touch {k} 0\r\nmg {k} t h v\r\n",
        "touch {k} -1\r\nget {k}\r\n",
        "touch {k} 100 noreply\r\nmg {k} t v\r\n",
        "me {k}\r\nme {k}\r\nmg {k} h\r\n",
        "mg {k} v\r\nget none\r\nme {k}\r\n",
    ]
    .map(case)
    .into();
    cases.push(with(" F7 T300", "v", ALL));
    cases.push(with(" F7 T300", "v", &ALL.repeat(3)));
    cases.push(with(" F4294967295", "", "get {k}\r\nmg {k} v s f\r\n"));
    cases.push(with(" T20", "v", "mg {k} R30 t v\r\nmg {k} R30 t v\r\nmg {k} v\r\n"));
    cases.push(with(" T20", "v", "mg {k} R30 T100 t v\r\nmg {k} R30 t v\r\n"));
    cases.push(with(" T20", "v", "mg {k} T100 R30 t v\r\nmg {k} R30 t v\r\n"));
    cases.push(with(" T20", "v", "mg {k} R30 C{c} t v\r\nmg {k} R30 C{c} t v\r\n"));
    // Stale ones, whose first reader wins.
    let i = "md {k} I T400\r\n";
    for then in [
        "mg {k} v\r\nmg {k} v\r\nmg {k} v\r\n",
        "mg {k}\r\nmg {k} t v\r\n",
        "mg {k} v c t h\r\nget none\r\nmg {k} v c t h\r\nmg {k} v c t h\r\n",
        "get {k}\r\nmg {k} v\r\nget {k}\r\nmg {k} v\r\n",
        "mg {k} T9 t v\r\nmg {k} T9 t v\r\n",
        "mg {k} N9 t v\r\nmg {k} N9 t v\r\n",
        "mg {k} R9 t v\r\nmg {k} R9 t v\r\n",
        "mg {k} C1 t v\r\nmg {k} C1 t v\r\n",
        "mg {k} u v\r\nmg {k} u v\r\n",
        "mg {k} q v\r\nmg {k} q v\r\n",
        "touch {k} 50\r\nmg {k} t v\r\nmg {k} t v\r\n",
        "gat 50 {k}\r\nmg {k} t v\r\nmg {k} t v\r\n",
        "me {k}\r\nmg {k} v\r\nmg {k} v\r\n",
        "md {k} I T30\r\nmg {k} t v\r\nmg {k} t v\r\n",
        "ms {k} 1\r\nx\r\nmg {k} v\r\n",
        "ms {k} 1 MA\r\nx\r\nmg {k} v\r\nmg {k} v\r\n",
        "ma {k}\r\nmg {k} v\r\n",
        "md {k} x\r\nmg {k} v s\r\n",
    ] {
        cases.push(stale(i, then));
    }
    cases.push(stale("md {k} I T400\r\nmg {k} v\r\n", "mg {k} v\r\nmg {k} v\r\n"));
    cases.push(stale("mg {k} R9999\r\n", "mg {k} R9999 v\r\nmg {k} v\r\n"));
    cases.push(stale("mg {k} h\r\n", "mg {k} h l t\r\nme {k}\r\n"));
    cases
}

fn changes() -> Vec<Case> {
    let get = "gets {k}\r\nmg {k} t f s h v\r\n";
    let mut cases: Vec<Case> = [
        "set {k} 3 0 3\r\nnew\r\n",
        "set {k} 3 60 3 noreply\r\nnew\r\n",
        "get {k}\r\nset {k} 3 0 3\r\nnew\r\n",
        "add {k} 3 0 3\r\nnew\r\n",
        "add {k} 3 0 3 noreply\r\nnew\r\n",
        "delete {k}\r\nadd {k} 3 0 3\r\nnew\r\n",
        "replace {k} 3 60 3\r\nnew\r\n",
        "replace {k} 3 60 3 noreply\r\nnew\r\n",
        "append {k} 3 60 3\r\nnew\r\n",
        "append {k} 3 60 3\r\nnew\r\nprepend {k} 3 60 3\r\nnew\r\nappend {k} 0 0 1\r\n!\r\n",
        "prepend {k} 3 60 3\r\nnew\r\n",
        "prepend {k} 3 60 3 noreply\r\nnew\r\n",
        "append {k} 3 60 0\r\n\r\n",
        "cas {k} 3 60 3 {c}\r\nnew\r\n",
        "cas {k} 3 60 3 {c}\r\nnew\r\ncas {k} 3 60 3 {c}\r\nold\r\n",
        "cas {k} 3 60 3 1\r\nnew\r\n",
        "cas {k} 3 60 3 {c} noreply\r\nnew\r\n",
        "cas {k} 3 60 3 0\r\nnew\r\n",
        "incr {k} 7\r\n",
        "incr {k} 7 noreply\r\n",
        "incr {k} 99\r\nincr {k} 1\r\n",
        "decr {k} 7\r\n",
        "decr {k} 40\r\ndecr {k} 40\r\n",
        "incr {k} x\r\n",
        "delete {k}\r\n",
        "delete {k} 0\r\n",
        "delete {k} noreply\r\n",
        "delete {k}\r\ndelete {k}\r\n",
        "get {k}\r\ndelete {k}\r\n",
        "md {k}\r\n",
        "md {k} q\r\n",
        "md {k} q\r\nmd {k} q\r\n",
        "md {k} C{c}\r\n",
        "md {k} C1\r\n",
        "md {k} I T30\r\nmg {k} v\r\nmg {k} v\r\n",
        "md {k} I q\r\nmg {k} v\r\nmg {k} v\r\n",
        "md {k} x\r\n",
        "md {k} x F8 T30\r\n",
        "md {k} E123456789\r\n",
        "md {k} I E123456789\r\nmg {k} c v\r\n",
        "md {k} x E123456789\r\nmg {k} c v\r\n",
        "md {k} T30\r\n",
        "ma {k}\r\n",
        "ma {k} v t c k O5\r\n",
        "ma {k} D10 MI v\r\nma {k} D5 MD v\r\n",
        "ma {k} D100 MD v\r\n",
        "ma {k} N30 J5 v t\r\n",
        "ma {k} T30 v t\r\n",
        "ma {k} C{c} v\r\n",
        "ma {k} C1 v\r\n",
        "ma {k} E99999999 v c\r\n",
        "ma {k} q v\r\n",
        "ms {k} 3 c\r\nnew\r\n",
        "ms {k} 3 ME\r\nnew\r\n",
        "ms {k} 3 MA c s\r\nnew\r\n",
        "ms {k} 3 MP q\r\nnew\r\n",
        "ms {k} 3 MR F8 T40\r\nnew\r\n",
        "ms {k} 3 MA N20\r\nnew\r\n",
        "ms {k} 3 C{c} c\r\nnew\r\n",
        "ms {k} 3 C1\r\nnew\r\n",
        "ms {k} 3 C1 I\r\nnew\r\nmg {k} v\r\nmg {k} v\r\n",
        "ms {k} 3 C99999999 I\r\nnew\r\n",
        "ms {k} 3 C{c} MA\r\nnew\r\n",
        "ms {k} 3 E88888888 c\r\nnew\r\n",
        "ms {k} 3 q\r\nnew\r\n",
        "ms {k} S3 bad\r\n",
        "ms {k} 3 MS\r\nnewer\r\n",
        "set {k} 0 -1 3\r\nnew\r\n",
        "set {k} 0 0 3\r\ntoolong\r\n",
    ]
    .map(|then| case(&format!("{then}{get}")))
    .into();
    for then in ["incr {k} 1\r\n", "ma {k} N0\r\n", "decr {k} 1\r\n"] {
        cases.push(with(" F2", "no number", then));
        cases.push(with(" F2", "99", &format!("{then}{get}")));
        cases.push(with(" F2", "", &format!("{then}{get}")));
        cases.push(with(" F2", "18446744073709551615", &format!("{then}{get}")));
    }
    cases
}

/// Values of all sizes, and requests with values of more than 16 KiB, which arrive in parts.
fn long_values() -> Vec<Case> {
    let get = "get {k}\r\nmg {k} s v h\r\n";
    let mut cases = Vec::new();
    for (n, len) in
        [0, 1, 3900, 4083, 4090, 8192, 16_000, 17_000, 65_536, 131_072, 140_000, 500_000, 1_000_000]
            .into_iter()
            .enumerate()
    {
        let value = String::from_utf8(crate::tier::letters(n, len)).expect("letters");
        cases.push(with(" F9", &value, get));
        cases.push(with(" F9", &value, &format!("append {{k}} 0 0 3\r\nnew\r\n{get}")));
        cases.push(with(" F9", &value, &format!("touch {{k}} 100\r\ngat 50 {{k}}\r\n{get}")));
        cases.push(with(" F9", &value, "incr {k} 1\r\nmd {k} I\r\nmg {k} v\r\nmg {k} s\r\n"));
    }
    for (n, len) in [20_000, 150_000, 400_000].into_iter().enumerate() {
        let new = String::from_utf8(crate::tier::letters(100 + n, len)).expect("letters");
        for (command, end) in [
            ("set", ""),
            ("add", ""),
            ("replace", ""),
            ("append", ""),
            ("prepend", ""),
            ("append", " noreply"),
            ("cas", " {c}"),
            ("cas", " 1"),
        ] {
            for before in ["", "get {k}\r\n", "get none\r\n"] {
                let then = format!("{before}{command} {{k}} 3 0 {len}{end}\r\n{new}\r\n{get}");
                cases.push(with(" F9", "short", &then));
                if before.is_empty() {
                    cases.push(with(" F9", &"long".repeat(20_000), &then));
                }
            }
        }
        for flags in ["MA", "MP", "ME", "MR", "C{c}", "C1", "C1 I", "MA C{c} c", "MA q"] {
            cases.push(with(" F9", "short", &format!("ms {{k}} {len} {flags}\r\n{new}\r\n{get}")));
        }
        cases.push(with(" F9", "short", &format!("append {{k}} 3 0 {len}\r\n{new}x\r\n{get}")));
    }
    // Joined values that exceed the limit.
    let most = "x".repeat(900_000);
    cases.push(with(
        "",
        &most,
        &format!("append {{k}} 0 0 200000\r\n{}\r\nget {{k}}\r\n", "y".repeat(200_000)),
    ));
    cases.push(with(
        "",
        "42",
        &format!("set {{k}} 0 0 2000000\r\n{}\r\nget {{k}}\r\n", "y".repeat(2_000_000)),
    ));
    cases.push(with("", "42", &format!("ms {{k}} 2000000\r\n{}\r\nget {{k}}\r\n", "y".repeat(2_000_000))));
    cases.push(with(
        "",
        "42",
        &format!("add {{k}} 0 0 2000000\r\n{}\r\nget {{k}}\r\n", "y".repeat(2_000_000)),
    ));
    cases
}

/// Checks that both servers answer alike.
fn check(flags: &str, cases: &[Case]) {
    retried(|| {
        let Some(mut pair) = Pair::new(flags) else { return };
        check_with(&mut pair, cases);
        pair.stop();
    });
}

fn check_with(pair: &mut Pair, cases: &[Case]) {
    let mut cas = Vec::new();
    let replaced = |bytes: &[u8], n: usize, cas: u64| {
        let text = std::str::from_utf8(bytes).expect("text");
        text.replace("{k}", &format!("case-{n}")).replace("{c}", &cas.to_string())
    };
    for (n, case) in cases.iter().enumerate() {
        let value = String::from_utf8(case.value.clone()).expect("text");
        let request = format!("ms case-{n} {} c{}\r\n{value}\r\n", value.len(), case.flags);
        let mut old = [0; 2];
        pair.say_to_both(request.as_bytes());
        for (c, old) in [&mut pair.flash, &mut pair.plain].into_iter().zip(&mut old) {
            *old = c.hear_until("\r\n")[4..].trim_end().parse().expect("a CAS value");
            c.request(format!("{}mn\r\n", replaced(case.before.as_bytes(), n, 0)).as_bytes(), "");
            c.hear_until_noop();
        }
        cas.push(old);
    }
    pair.flash.fill();
    let mut reads = pair.flash.flash_reads();
    let (mut wrong, mut read_there) = (Vec::new(), 0);
    for (n, case) in cases.iter().enumerate() {
        let mut answers = Vec::new();
        for (c, cas) in [&mut pair.flash, &mut pair.plain].into_iter().zip(cas[n]) {
            c.say(format!("{}mn\r\n", replaced(&case.then, n, cas)));
            answers.push(c.hear_until_noop());
        }
        let now = pair.flash.flash_reads();
        read_there += usize::from(now > reads);
        reads = now;
        if !pair.are_alike(cas[n], &answers[0], &answers[1]) {
            let alike = answers[0].bytes().zip(answers[1].bytes()).take_while(|(a, b)| a == b).count();
            let short = |text: &str, from| text.chars().skip(from).take(160).collect::<String>();
            let then = short(&replaced(&case.then, n, cas[n][0]), 0);
            let [flash, plain] = [0, 1].map(|of| short(&answers[of], alike.saturating_sub(40)));
            wrong
                .push(format!("{:?}: to {then:?}\n on flash {flash:?}\n in memory {plain:?}\n", case.before));
        }
    }
    // Without eviction, a long value is refused while the device is too slow to make room for it.
    let refused = pair.flash.count("", "store_no_memory") as usize;
    assert!(
        wrong.len() <= refused,
        "{} of {}, and {refused} refused:\n{}",
        wrong.len(),
        cases.len(),
        wrong.concat()
    );
    // Eviction keeps some items in memory.
    assert!(read_there > cases.len() / 3, "{read_there} items of {} were on flash", cases.len());
}

#[test]
fn reads_answer_as_in_memory() {
    check("", &reads());
}

#[test]
fn changes_answer_as_in_memory() {
    check("", &changes());
}

#[test]
fn values_of_all_sizes_answer_as_in_memory() {
    check("", &long_values());
}

#[test]
fn without_eviction_commands_answer_as_in_memory() {
    for cases in [reads(), changes(), long_values()] {
        check("-M", &cases);
    }
}
