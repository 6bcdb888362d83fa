//! Text for readers: escaped for HTML, numbers with units, dates.

/// Numbers from here on are written with a power of ten.
const HUGE: f64 = 1e17;

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Nanoseconds, shown in a suitable unit.
    Time,
    /// Operations or requests per second.
    PerSecond,
    /// Bytes per second.
    BytesPerSecond,
    /// Bytes.
    Bytes,
    /// A fraction of 1, shown in percent.
    Part,
    /// Any other number.
    Plain,
}

impl Unit {
    /// Returns the unit of the figure with this name.
    pub(super) fn of_figure(name: &str) -> Unit {
        let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
        if ends(&["_ns", "_ns_each", "_us", "_ms"]) {
            Unit::Time
        } else if ends(&["bytes_per_s"]) {
            Unit::BytesPerSecond
        } else if ends(&["_per_s"]) {
            Unit::PerSecond
        } else if ends(&["bytes"]) {
            Unit::Bytes
        } else if ends(&["_ratio", "_share", "_part", "_rate"]) {
            Unit::Part
        } else {
            Unit::Plain
        }
    }

    /// Returns the nanoseconds in one unit of the figure with this name, if it is a time.
    pub(super) fn scale_of_figure(name: &str) -> f64 {
        match name {
            us if us.ends_with("_us") => 1e3,
            ms if ms.ends_with("_ms") => 1e6,
            _ => 1.0,
        }
    }

    /// Returns the unit for the heading of a column.
    pub(super) fn heading(self) -> &'static str {
        match self {
            Unit::Time => "µs",
            Unit::PerSecond => "1/s",
            Unit::BytesPerSecond => "MB/s",
            Unit::Bytes => "bytes",
            Unit::Part => "%",
            Unit::Plain => "",
        }
    }

    /// Returns the number in the unit of the heading; empty for NaN.
    pub(super) fn cell(self, value: f64) -> String {
        if !value.is_finite() {
            return String::new();
        }
        match self {
            Unit::Time => digits(value / 1e3),
            Unit::PerSecond | Unit::Bytes => format!("{value:.0}"),
            Unit::BytesPerSecond => digits(value / 1e6),
            Unit::Part => format!("{:.2}", value * 100.0),
            Unit::Plain => digits(value),
        }
    }

    /// Formats a number briefly, with its unit.
    pub(super) fn short(self, value: f64) -> String {
        match self {
            Unit::Time => {
                let (scaled, unit) = match value.abs() {
                    ns if ns < 1e3 => (value, "ns"),
                    ns if ns < 1e6 => (value / 1e3, "µs"),
                    ns if ns < 1e9 => (value / 1e6, "ms"),
                    _ => (value / 1e9, "s"),
                };
                if value == 0.0 { "0".to_owned() } else { format!("{} {unit}", three_digits(scaled)) }
            }
            Unit::PerSecond | Unit::Plain => scaled(value, 1e3, ["", "k", "M", "G", "T"]),
            Unit::BytesPerSecond => scaled(value, 1e3, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]),
            Unit::Bytes => scaled(value, 1024.0, ["B", "KiB", "MiB", "GiB", "TiB"]),
            Unit::Part => format!("{}%", three_digits(value * 100.0)),
        }
    }
}

fn scaled(value: f64, step: f64, units: [&str; 5]) -> String {
    if value.abs() >= HUGE {
        return format!("{value:.0e}{}{}", if units[0].is_empty() { "" } else { " " }, units[0]);
    }
    let mut rest = value;
    let mut unit = 0;
    while rest.abs() >= step && unit + 1 < units.len() {
        rest /= step;
        unit += 1;
    }
    let space = if units[0].is_empty() || rest == 0.0 { "" } else { " " };
    let unit = if rest == 0.0 { "" } else { units[unit] };
    format!("{}{space}{unit}", three_digits(rest))
}

/// Formats at most three significant digits, without trailing zeros.
fn three_digits(value: f64) -> String {
    if value.abs() >= HUGE {
        return format!("{value:.0e}");
    }
    let places = match value.abs() {
        large if large >= 99.95 => 0,
        middle if middle >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.places$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Formats a number for a column: more decimals for smaller numbers.
fn digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        large if large >= 1e4 => format!("{value:.0}"),
        middle if middle >= 100.0 => format!("{value:.1}"),
        small if small >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.2e}"),
    }
}

/// Escapes text for HTML and quoted attributes. Invisible characters, and those that change the
/// direction of text, become a replacement character.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(' '),
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                safe.push('\u{fffd}');
            }
            control if control.is_control() => safe.push('\u{fffd}'),
            other => safe.push(other),
        }
    }
    safe
}

/// Encodes the part of a `data:` URL after the comma.
pub(super) fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b',' | b';' | b':' => {
                encoded.push(char::from(byte));
            }
            _ => {
                encoded.push('%');
                encoded.push_str(&format!("{byte:02X}"));
            }
        }
    }
    encoded
}

/// Returns the readable name of a condition or figure.
pub(super) fn spoken(name: &str) -> String {
    let known = match name {
        "value_bytes" => "value size",
        "key_bytes" => "key size",
        "rate_per_s" => "offered operations a second",
        "keys_per_request" => "keys in a request",
        "bytes_per_s" => "bytes a second",
        "blocking_ns_each" => "blocking time an operation",
        _ => "",
    };
    if !known.is_empty() {
        return known.to_owned();
    }
    if let Some(stem) = name.strip_suffix("_per_s") {
        return format!("{} a second", stem.replace('_', " "));
    }
    let units = ["_ns", "_ns_each", "_us", "_ms", "_bytes"];
    let stem = units.iter().find_map(|unit| name.strip_suffix(unit)).unwrap_or(name);
    stem.replace('_', " ")
}

/// Formats a condition as a phrase: `4 KiB`, `8 clients`, `drain wait`.
pub(super) fn condition(name: &str, value: &crate::results::Parameter) -> String {
    use crate::results::Parameter;
    match value {
        Parameter::Text(text) => format!("{} {text}", spoken(name)),
        Parameter::Number(number) => match name {
            "value_bytes" => format!("values of {}", Unit::Bytes.short(*number)),
            "rate_per_s" => format!("{} offered a second", Unit::PerSecond.short(*number)),
            "keys_per_request" => format!("{number} keys in a request"),
            "clients" | "threads" | "processes" => {
                let one = if name == "processes" { "process" } else { name.trim_end_matches('s') };
                format!("{number} {}", if *number == 1.0 { one } else { name })
            }
            _ if name.ends_with("_ms") || name.ends_with("_us") || name.ends_with("_ns") => {
                let ns = number * Unit::scale_of_figure(name);
                format!("{} {}", spoken(name), Unit::Time.short(ns))
            }
            _ if name.ends_with("_bytes") => format!("{} {}", spoken(name), Unit::Bytes.short(*number)),
            _ => format!("{} {}", spoken(name), digits_of_condition(*number)),
        },
    }
}

fn digits_of_condition(number: f64) -> String {
    let is_usual = number == 0.0 || (1e-6..1e15).contains(&number.abs());
    if is_usual { format!("{number}") } else { format!("{number:e}") }
}

/// Formats seconds since 1970 as date and time in UTC.
pub(super) fn day_and_time(unix_s: u64) -> String {
    const DAY_S: u64 = 86_400;
    // Days of the proleptic Gregorian calendar, counted from 1 March of the year 0.
    let days = unix_s / DAY_S + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let second = unix_s % DAY_S;
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3_600, second / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Parameter;

    #[test]
    fn numbers_have_units() {
        for (unit, value, short, cell) in [
            (Unit::Time, 0.0, "0", "0"),
            (Unit::Time, 850.0, "850 ns", "0.85"),
            (Unit::Time, 12_340.0, "12.3 µs", "12.34"),
            (Unit::Time, -2e9, "-2 s", "-2000000"),
            (Unit::PerSecond, 1_234_567.0, "1.23M", "1234567"),
            (Unit::PerSecond, 999.6, "1000", "1000"),
            (Unit::Bytes, 4096.0, "4 KiB", "4096"),
            (Unit::Bytes, 1.0, "1 B", "1"),
            (Unit::BytesPerSecond, 2.5e9, "2.5 GB/s", "2500.0"),
            (Unit::Part, 0.98765, "98.8%", "98.77"),
            (Unit::PerSecond, 2f64.powi(64), "2e19", "18446744073709551616"),
            (Unit::Plain, 0.000_5, "0", "5.00e-4"),
        ] {
            assert_eq!(
                (unit.short(value).as_str(), unit.cell(value).as_str()),
                (short, cell),
                "{unit:?} {value}"
            );
        }
        assert_eq!(Unit::Time.cell(f64::NAN), "");
        assert_eq!(Unit::of_figure("bytes_per_s"), Unit::BytesPerSecond);
        assert_eq!(Unit::of_figure("hit_ratio"), Unit::Part);
    }

    #[test]
    fn conditions_are_phrases() {
        for (name, value, text) in [
            ("value_bytes", Parameter::Number(65_536.0), "values of 64 KiB"),
            ("clients", Parameter::Number(1.0), "1 client"),
            ("processes", Parameter::Number(1.0), "1 process"),
            ("clients", Parameter::Number(8.0), "8 clients"),
            ("spill_factor", Parameter::Number(1.5), "spill factor 1.5"),
            ("penalty_ms", Parameter::Number(2.0), "penalty 2 ms"),
            ("drain", Parameter::Text("wait".into()), "drain wait"),
        ] {
            assert_eq!(condition(name, &value), text);
        }
    }

    #[test]
    fn special_characters_are_escaped() {
        let hostile = "</title><script a='\"'>&\u{202e}\0";
        let safe = escape(hostile);
        assert_eq!(safe, "&lt;/title&gt;&lt;script a=&#39;&quot;&#39;&gt;&amp;\u{fffd}\u{fffd}");
        assert_eq!(percent_encode("a,\"<µ\n"), "a,%22%3C%C2%B5%0A");
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(day_and_time(0), "1970-01-01 00:00 UTC");
        assert_eq!(day_and_time(951_868_799), "2000-02-29 23:59 UTC");
        assert_eq!(day_and_time(1_795_366_872), "2026-11-22 17:01 UTC");
    }
}
