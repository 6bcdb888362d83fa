//! Known differences between fabcached, which answers like memcached 1.6.45 or by its own choice, and
//! Debian's 1.6.18: exact triples of the input, their answer and ours.
//!
//! The generator sends these inputs in no other way, so every other difference is a fault. Each entry
//! is sent in each run, at a moment when all earlier answers have been read, after a setup that gives
//! its keys a known state on both servers. Both answers must equal the entry to the byte.

/// One known difference.
#[derive(Debug, PartialEq, Eq)]
pub struct Drift {
    /// Sent first; its answers are ignored.
    pub setup: &'static str,
    /// The input.
    pub sent: &'static str,
    /// Answer of memcached 1.6.18.
    pub theirs: &'static str,
    /// Answer of fabcached; that of memcached 1.6.45 unless the reason says otherwise.
    pub ours: &'static str,
    /// Why they differ.
    pub reason: &'static str,
}

impl Drift {
    /// Returns an error if the answers differ from the entry. With `twin`, ours is a memcached 1.6.18, too.
    pub fn check(&self, theirs: &[u8], ours: &[u8], twin: bool) -> Result<(), String> {
        let expected = if twin { self.theirs } else { self.ours };
        if theirs != self.theirs.as_bytes() {
            return Err(format!("known difference: theirs should be {:?}", self.theirs));
        }
        if ours != expected.as_bytes() {
            return Err(format!("known difference: ours should be {expected:?} ({})", self.reason));
        }
        Ok(())
    }
}

macro_rules! key_251 {
    () => {
        concat!(
            "a1234567890123456789012345678901234567890123456789",
            "01234567890123456789012345678901234567890123456789",
            "01234567890123456789012345678901234567890123456789",
            "01234567890123456789012345678901234567890123456789",
            "01234567890123456789012345678901234567890123456789",
            "1"
        )
    };
}

const ERROR: &str = "ERROR\r\n";
const ERROR_TWICE: &str = "ERROR\r\nERROR\r\n";
const BAD_LINE: &str = "CLIENT_ERROR bad command line format\r\n";
const BAD_LINE_ERROR: &str = "CLIENT_ERROR bad command line format\r\nERROR\r\n";
const BAD_META_FLAG: &str = "CLIENT_ERROR invalid or duplicate flag\r\n";
const INVALID_FLAG: &str = "CLIENT_ERROR invalid flag\r\n";
const M_LEN: &str = "CLIENT_ERROR incorrect length for M token\r\n";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format\r\n";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument\r\n";
const DELETE_USAGE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const NO_SHUTDOWN: &str = "ERROR: shutdown not enabled\r\n";

const ABSENT: &str = "delete drift\r\n";
const TEXT: &str = "set drift 5 0 3\r\nabc\r\n";
const NUMBER: &str = "set drift 0 0 1\r\n5\r\n";
const NOTHING: &str = "";

const SHORT_LINE: &str = "a line below four bytes, its end included, is badly formed, not unknown";
const NO_KEY: &str = "a command without its arguments is badly formed, not unknown";
const MORE_WORDS: &str = "words after the arguments are ignored";
const STRICT_NUMBER: &str = "most numbers have no plus sign and at most 32 bits";
const FIRST_BYTE: &str = "most commands begin with the line";
const SWALLOWED: &str = "the data of a refused store is swallowed, not read as a command";
const NUL: &str = "NUL is a byte like others in a line, and does not end it";
const OWN_ERROR: &str = "md describes the error of a flag";
const NEW_FLAG: &str = "a flag that came after 1.6.18";
const M_WORD: &str = "only the first letter of a mode counts";

const fn drift(
    setup: &'static str,
    sent: &'static str,
    theirs: &'static str,
    ours: &'static str,
    reason: &'static str,
) -> Drift {
    Drift { setup, sent, theirs, ours, reason }
}

/// All known differences.
pub static TABLE: &[Drift] = &[
    // Lines that are too short to be a command.
    drift(NOTHING, "\r\n", ERROR, BAD_LINE, SHORT_LINE),
    drift(NOTHING, "\n", ERROR, BAD_LINE, SHORT_LINE),
    drift(NOTHING, "a\r\n", ERROR, BAD_LINE, SHORT_LINE),
    drift(NOTHING, "ab\n", ERROR, BAD_LINE, SHORT_LINE),
    drift(NOTHING, " \r\n", ERROR, BAD_LINE, SHORT_LINE),
    // Commands without their arguments.
    drift(NOTHING, "get\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "gets\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "gat\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "gats\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "gat 0\r\n", "END\r\n", BAD_LINE, NO_KEY),
    drift(NOTHING, "gats 0\r\n", "END\r\n", BAD_LINE, NO_KEY),
    drift(NOTHING, "touch\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "touch drift\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "incr\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NUMBER, "incr drift\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "decr\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NUMBER, "decr drift\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "delete\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "set\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "set drift 0 0\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "add drift 0\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "replace drift 0 0\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "append drift\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "prepend drift 0 0\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "cas drift 0 0\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(TEXT, "cas drift 0 0 3\r\nxyz\r\n", ERROR_TWICE, BAD_LINE, NO_KEY),
    drift(NOTHING, "mg\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "ms\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "md\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "ma\r\n", ERROR, BAD_LINE, NO_KEY),
    drift(NOTHING, "verbosity\r\n", ERROR, BAD_LINE, NO_KEY),
    // Words too many.
    drift(ABSENT, "set drift 0 0 3 a b\r\nxyz\r\n", ERROR_TWICE, "STORED\r\n", MORE_WORDS),
    drift(ABSENT, "add drift 0 0 3 a b c\r\nxyz\r\n", ERROR_TWICE, "STORED\r\n", MORE_WORDS),
    drift(TEXT, "cas drift 0 0 3 9 a b\r\nxyz\r\n", ERROR_TWICE, "EXISTS\r\n", MORE_WORDS),
    drift(TEXT, "touch drift 0 a b\r\n", ERROR, "TOUCHED\r\n", MORE_WORDS),
    drift(NUMBER, "incr drift 1 a b\r\n", ERROR, "6\r\n", MORE_WORDS),
    drift(NUMBER, "decr drift 1 a b\r\n", ERROR, "4\r\n", MORE_WORDS),
    drift(NOTHING, "verbosity 0 a b\r\n", ERROR, "OK\r\n", MORE_WORDS),
    drift(NOTHING, "verbosity a b c\r\n", ERROR, BAD_LINE, MORE_WORDS),
    drift(TEXT, "delete drift a b c\r\n", ERROR, "DELETED\r\n", MORE_WORDS),
    drift(TEXT, "delete drift a b c d e\r\n", ERROR, "DELETED\r\n", MORE_WORDS),
    drift(TEXT, "delete drift 0 0 0 0\r\n", ERROR, "DELETED\r\n", MORE_WORDS),
    drift(TEXT, "delete drift 10\r\n", DELETE_USAGE, "DELETED\r\n", MORE_WORDS),
    drift(TEXT, "delete drift -1\r\n", DELETE_USAGE, "DELETED\r\n", MORE_WORDS),
    drift(TEXT, "delete drift a\r\n", DELETE_USAGE, "DELETED\r\n", MORE_WORDS),
    drift(TEXT, "delete drift 0 0\r\n", DELETE_USAGE, "DELETED\r\n", MORE_WORDS),
    drift(NOTHING, "flush_all a b c\r\n", ERROR, BAD_EXPTIME, MORE_WORDS),
    // Stores that are refused before their data.
    drift(ABSENT, "set drift abc 0 3\r\nxyz\r\n", BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(ABSENT, "set drift -1 0 3\r\nxyz\r\n", BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(ABSENT, "set drift 18446744073709551616 0 3\r\nxyz\r\n", BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(ABSENT, "set drift 0 abc 3\r\nxyz\r\n", BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(ABSENT, "set drift abc 0 3 noreply\r\nxyz\r\n", ERROR, "", SWALLOWED),
    drift(ABSENT, "add drift 0 abc 3\r\nxyz\r\n", BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(TEXT, "replace drift abc 0 3\r\nxyz\r\n", BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(TEXT, "append drift abc 0 3\r\nxyz\r\n", BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(TEXT, "prepend drift 0 abc 3\r\nxyz\r\n", BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(TEXT, "cas drift 0 0 3 abc\r\nxyz\r\n", BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(TEXT, "cas drift 0 0 3 18446744073709551616\r\nxyz\r\n", BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(NOTHING, concat!("set ", key_251!(), " 0 0 3\r\nxyz\r\n"), BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(NOTHING, concat!("set ", key_251!(), " 0 0 3 noreply\r\nxyz\r\n"), ERROR, "", SWALLOWED),
    drift(NOTHING, concat!("add ", key_251!(), " 0 0 3\r\nxyz\r\n"), BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(NOTHING, concat!("replace ", key_251!(), " 0 0 3\r\nxyz\r\n"), BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(NOTHING, concat!("append ", key_251!(), " 0 0 3\r\nxyz\r\n"), BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(NOTHING, concat!("prepend ", key_251!(), " 0 0 3\r\nxyz\r\n"), BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(NOTHING, concat!("cas ", key_251!(), " 0 0 3 9\r\nxyz\r\n"), BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    drift(NOTHING, concat!("ms ", key_251!(), " 3\r\nxyz\r\n"), BAD_LINE_ERROR, BAD_LINE, SWALLOWED),
    // Lengths.
    drift(
        ABSENT,
        "set drift 0 0 4294967296\r\nab\r\n",
        "CLIENT_ERROR bad data chunk\r\nERROR\r\n",
        BAD_LINE_ERROR,
        "a length of 2^32 or more is refused, not cut to 32 bits",
    ),
    // Numbers.
    drift(ABSENT, "set drift 0 0 +3\r\nxyz\r\n", "STORED\r\n", BAD_LINE_ERROR, STRICT_NUMBER),
    drift(
        NUMBER,
        "incr drift +1\r\n",
        "6\r\n",
        "CLIENT_ERROR invalid numeric delta argument\r\n",
        STRICT_NUMBER,
    ),
    drift(TEXT, "touch drift +1\r\n", "TOUCHED\r\n", BAD_EXPTIME, STRICT_NUMBER),
    drift(TEXT, "touch drift 2147483648\r\n", "TOUCHED\r\n", BAD_EXPTIME, STRICT_NUMBER),
    drift(TEXT, "touch drift -\r\n", BAD_EXPTIME, "TOUCHED\r\n", "a sign alone is 0"),
    drift(TEXT, "mg drift T2147483648\r\n", "HD\r\n", BAD_TOKEN, STRICT_NUMBER),
    drift(TEXT, "mg drift C+1\r\n", "HD\r\n", BAD_TOKEN, STRICT_NUMBER),
    drift(ABSENT, "ms drift 3 F4294967296\r\nxyz\r\n", "HD\r\n", BAD_LINE, STRICT_NUMBER),
    // Lines that begin with a space; other unknown commands.
    drift(TEXT, " get drift\r\n", "VALUE drift 5 3\r\nabc\r\nEND\r\n", ERROR, FIRST_BYTE),
    drift(NOTHING, "  version\r\n", "VERSION 1.6.18\r\n", ERROR, FIRST_BYTE),
    drift(NOTHING, "x noreply\r\n", ERROR, NOTHING, "an unknown command may ask for no answer"),
    drift(NOTHING, "delete noreply\r\n", "NOT_FOUND\r\n", NOTHING, "the last word counts, also as a key"),
    // NULs.
    drift(TEXT, "get drift\0y\r\n", "VALUE drift 5 3\r\nabc\r\nEND\r\n", "END\r\n", NUL),
    drift(ABSENT, "set drift\0z 0 0 3\r\nxyz\r\n", ERROR_TWICE, "STORED\r\n", NUL),
    // Meta flags.
    drift(TEXT, "mg drift !\r\n", INVALID_FLAG, BAD_LINE, "a flag begins with a letter or digit"),
    drift(
        TEXT,
        "mg drift \x7f\r\n",
        "CLIENT_ERROR duplicate flag\r\n",
        BAD_LINE,
        "a flag begins with a letter or digit",
    ),
    drift(NOTHING, concat!("ma ", key_251!(), "\r\n"), BAD_LINE, BAD_META_FLAG, "ma has one error for all"),
    drift(
        ABSENT,
        "ms drift 3 E77\r\nxyz\r\nmg drift C77 v\r\n",
        "CLIENT_ERROR invalid flag\r\nEN\r\n",
        "HD\r\nHD\r\n",
        NEW_FLAG,
    ),
    drift(TEXT, "md drift k k\r\n", BAD_META_FLAG, "CLIENT_ERROR duplicate flag\r\n", OWN_ERROR),
    drift(TEXT, "md drift z\r\n", BAD_META_FLAG, INVALID_FLAG, OWN_ERROR),
    drift(TEXT, "md drift Tx\r\n", BAD_META_FLAG, BAD_TOKEN, OWN_ERROR),
    drift(TEXT, "md drift Cx\r\n", BAD_META_FLAG, BAD_TOKEN, OWN_ERROR),
    drift(TEXT, "md !!!! b\r\n", BAD_META_FLAG, "CLIENT_ERROR error decoding key\r\n", OWN_ERROR),
    drift(ABSENT, "ms drift 3 MSET\r\nxyz\r\n", M_LEN, "HD\r\n", M_WORD),
    drift(ABSENT, "ms drift 3 M\r\nxyz\r\n", M_LEN, "CLIENT_ERROR invalid mode for ms M token\r\n", M_WORD),
    drift(NUMBER, "ma drift MINCR v\r\n", BAD_META_FLAG, "VA 1\r\n6\r\n", M_WORD),
    drift(NUMBER, "ma drift M\r\n", BAD_META_FLAG, "CLIENT_ERROR invalid mode for ma M token\r\n", M_WORD),
    drift(ABSENT, "ms drift 3 E77 c\r\nxyz\r\n", INVALID_FLAG, "HD c77\r\n", NEW_FLAG),
    drift(TEXT, "md drift E77 I\r\n", BAD_META_FLAG, "HD\r\n", NEW_FLAG),
    drift(NUMBER, "ma drift E77 c v\r\n", BAD_META_FLAG, "VA 1 c77\r\n6\r\n", NEW_FLAG),
    drift(ABSENT, "mg drift E77 N0 c\r\n", INVALID_FLAG, "HD c77 W\r\n", NEW_FLAG),
    drift(TEXT, "md drift x\r\n", BAD_META_FLAG, "HD\r\n", NEW_FLAG),
    drift(
        ABSENT,
        "ms drift 3 s\r\nxyz\r\n",
        "HD\r\n",
        "HD s3\r\n",
        "ms tells the size since s is one of its flags",
    ),
    drift(
        TEXT,
        "ms drift 3 MA s\r\nxyz\r\n",
        "HD\r\n",
        "HD s6\r\n",
        "ms tells the size since s is one of its flags",
    ),
    drift(
        ABSENT,
        "ms drift 3 MA N0\r\nxyz\r\n",
        "NS\r\n",
        "HD\r\n",
        "append creates an absent item when N says so",
    ),
    drift(
        ABSENT,
        "ms drift 3 MP N0\r\nxyz\r\n",
        "NS\r\n",
        "HD\r\n",
        "prepend creates an absent item when N says so",
    ),
    drift(ABSENT, "ma drift N0 q\r\n", "HD\r\n", "", "q hides the success of creating a number, too"),
    drift(
        TEXT,
        "mg drift k s v D1 f t h I u q O1 T0 N0 R0 C1 F1 MI J1\r\n",
        "CLIENT_ERROR options flags are too long\r\n",
        "VA 3 kdrift s3 f5 t-1 h0 O1\r\nabc\r\n",
        "20 words are allowed, 1.6.18 counts one more than there are",
    ),
    drift(
        TEXT,
        "ms drift 3 k s v c f t h l u q O1 T0 N0 R0 C1 F1 MS J1 D1\r\nxyz\r\n",
        "CLIENT_ERROR options flags too long\r\nERROR\r\n",
        "CLIENT_ERROR options flags are too long\r\n",
        SWALLOWED,
    ),
    drift(
        TEXT,
        "md drift k s v c f t h l u q O1 T0 N0 R0 C1 F1 MI J1 D1\r\n",
        "CLIENT_ERROR options flags too long\r\n",
        "CLIENT_ERROR options flags are too long\r\n",
        "the sentence of mg is that of all",
    ),
    drift(
        NUMBER,
        "ma drift k s v c f t h l u q O1 T0 N0 R0 C1 F1 MI J1 D1\r\n",
        "CLIENT_ERROR options flags too long\r\n",
        BAD_META_FLAG,
        "ma has one error for all",
    ),
    // Errors of memcached that are not copied.
    drift(
        "set drift 0 0 1\r\n9\r\n",
        "ma drift T-1\r\nmg drift v\r\n",
        "HD\r\nVA 2\r\n10\r\n",
        "HD\r\nEN\r\n",
        "the time to live is set on a number that gets longer, too",
    ),
    drift(
        NUMBER,
        concat!("gat -1 drift ", key_251!(), "\r\nmg drift v\r\n"),
        "CLIENT_ERROR bad command line format\r\nEN\r\n",
        "CLIENT_ERROR bad command line format\r\nVA 1\r\n5\r\n",
        "a line that is refused has done nothing",
    ),
    // Commands that came, went, or were renamed.
    drift(TEXT, "bget drift\r\n", "VALUE drift 5 3\r\nabc\r\nEND\r\n", ERROR, "bget is gone"),
    drift(
        NOTHING,
        "lru_crawler mgdump 300\r\n",
        ERROR,
        "BADCLASS invalid class id\r\n",
        "mgdump came after 1.6.18",
    ),
    drift(
        NOTHING,
        "lru_crawler metadump 62\r\n",
        "END\r\n",
        "OK\r\nEND\r\n",
        "a dump starts with OK since 1.6.44",
    ),
    drift(
        NOTHING,
        "shutdown\r\n",
        NO_SHUTDOWN,
        "SERVER_ERROR: shutdown not enabled\r\n",
        "another first word",
    ),
    drift(
        NOTHING,
        "shutdown now\r\n",
        NO_SHUTDOWN,
        "SERVER_ERROR: shutdown not enabled\r\n",
        "another first word",
    ),
];
