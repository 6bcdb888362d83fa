//! The same random requests to a server with flash and little memory, and to one with much memory: their answers are alike.

use fabcache_testbed::random::SplitMix64;

use crate::pair::Pair;
use crate::tier::letters;

const KEYS: usize = 4000;
const BATCH: usize = 50;

/// Returns how many requests are sent: more by hand.
fn requests() -> usize {
    std::env::var("FABCACHE_FLASH_REQUESTS").map_or(20_000, |count| count.parse().expect("a number"))
}

struct Requests {
    random: SplitMix64,
}

impl Requests {
    fn value(&mut self) -> String {
        let len = match self.random.below(100) {
            0..10 => return self.random.below(100_000).to_string(),
            10..60 => self.random.below(400),
            60..90 => self.random.below(8000),
            90..97 => self.random.below(40_000),
            _ => self.random.below(300_000),
        };
        String::from_utf8(letters(self.random.below(1 << 20), len)).expect("letters")
    }

    fn exptime(&mut self) -> String {
        // None may expire before the end on one of the servers only.
        self.random.pick(&["0", "0", "0", "1000", "3000", "100000", "-1"]).to_string()
    }

    /// Returns a request for a key, whose answer changes neither with CAS values nor with seconds.
    fn request(&mut self, key: usize) -> String {
        let (value, exptime) = (self.value(), self.exptime());
        let len = value.len();
        let quiet = self.random.percent(20);
        let noreply = if quiet { " noreply" } else { "" };
        let q = if quiet { " q" } else { "" };
        match self.random.below(100) {
            0..15 => format!("get key-{key}\r\n"),
            15..25 => format!("mg key-{key} v f s t{q}\r\n"),
            25..28 => format!("mg key-{key} v h k O77\r\n"),
            28..30 => format!("mg key-{key} h u\r\nmg key-{key} s\r\n"),
            30..33 => format!("mg key-{key} v t T{exptime}{q}\r\n"),
            33..35 => format!("mg key-{key} v N1000 t\r\n"),
            35..37 => format!("mg key-{key} v R2000 t\r\n"),
            37..39 => format!("gat {exptime} key-{key}\r\n"),
            39..42 => format!("touch key-{key} {exptime}{noreply}\r\n"),
            42..60 => {
                format!("set key-{key} {} {exptime} {len}{noreply}\r\n{value}\r\n", self.random.below(1000))
            }
            60..63 => format!("add key-{key} 7 {exptime} {len}{noreply}\r\n{value}\r\n"),
            63..66 => format!("replace key-{key} 8 {exptime} {len}{noreply}\r\n{value}\r\n"),
            66..70 => {
                let command = *self.random.pick(&["append", "prepend"]);
                format!("{command} key-{key} 0 0 {len}{noreply}\r\n{value}\r\n")
            }
            70..76 => {
                let mode = *self.random.pick(&["S", "E", "A", "P", "R", "A N1000", "P N3000"]);
                format!("ms key-{key} {len} F5 M{mode}{q}\r\n{value}\r\n")
            }
            76..80 => format!("incr key-{key} {}{noreply}\r\n", self.random.below(1000)),
            80..82 => format!("decr key-{key} {}\r\n", self.random.below(1000)),
            82..86 => {
                let flags = *self.random.pick(&["v", "v N1000 J13", "v MD D7", "t v T3000", "q"]);
                format!("ma key-{key} {flags}\r\n")
            }
            86..91 => format!("delete key-{key}{noreply}\r\n"),
            91..95 => {
                let flags = *self.random.pick(&["", "q", "I T3000", "I", "x", "x F9", "T1000 I"]);
                format!("md key-{key} {flags}\r\n")
            }
            95..97 => format!("md key-{key} I\r\nmg key-{key} v\r\nmg key-{key} v\r\n"),
            97..99 => format!("me key-{key}\r\nmg key-{key} h\r\n"),
            _ => {
                let names: String = (0..50).map(|_| format!(" key-{}", self.random.below(KEYS))).collect();
                format!("get{names}\r\n")
            }
        }
    }
}

fn check(flags: &str, seed: u64) {
    let Some(mut pair) = Pair::new(flags) else { return };
    let mut requests_of = Requests { random: SplitMix64::new(seed) };
    let mut lost = Vec::new();
    for _ in 0..requests() / BATCH {
        let keys: Vec<usize> = (0..BATCH).map(|_| requests_of.random.below(KEYS)).collect();
        let requests: Vec<String> = keys.iter().map(|key| requests_of.request(*key)).collect();
        let all: String = requests.iter().map(|request| format!("{request}mn\r\n")).collect();
        pair.say_to_both(format!("{all}version\r\n").as_bytes());
        let [flash, plain] = [&mut pair.flash, &mut pair.plain].map(|c| {
            let answers = c.hear_until("VERSION 1.6.45\r\n");
            answers.split("MN\r\n").map(str::to_owned).collect::<Vec<_>>()
        });
        assert_eq!((flash.len(), plain.len()), (BATCH + 1, BATCH + 1));
        let mut ignored = Vec::new();
        for (n, (flash, plain)) in flash.iter().zip(&plain).enumerate().take(BATCH) {
            // Of an item that is lost the rest of the batch differs.
            let is_multiget = requests[n].starts_with("get") && requests[n].matches(' ').count() > 1;
            let key = keys[n];
            if ignored.contains(&key)
                || (is_multiget && !ignored.is_empty())
                || pair.are_alike([0; 2], flash, plain)
            {
                continue;
            }
            let short = |text: &str| text.chars().take(300).collect::<String>();
            let [request, on_flash, in_memory] = [&requests[n], flash, plain].map(|text| short(text));
            let seen = || format!("to {request:?}\n on flash {on_flash:?}\n in memory {in_memory:?}");
            // No other value than the right one.
            let is_miss = flash.len() < plain.len() || !flash.contains("VA") || request.starts_with("mg");
            assert!(is_miss, "{}", seen());
            lost.push(seen());
            ignored.push(key);
        }
        for key in ignored {
            pair.say_to_both(format!("delete key-{key} noreply\r\n").as_bytes());
        }
    }
    // As the server counts them, but for items that made way for another key's unread.
    // Without eviction, a long value is refused while the device is too slow to make room for it.
    let losses = pair.flash.losses() + pair.flash.count("", "store_no_memory");
    assert!(
        lost.len() as u64 <= 4 + losses,
        "{} answers differ, and {losses} items were evicted or refused:\n{}",
        lost.len(),
        lost.join("\n")
    );
    let reads = pair.flash.flash_reads();
    assert!(reads as usize > requests() / 20, "{reads} reads of flash");
    pair.stop();
}

#[test]
fn random_requests_are_answered_as_in_memory() {
    check("-t 2", 1);
}

#[test]
fn random_requests_are_answered_as_in_memory_without_eviction() {
    check("-t 2 -M", 2);
}
