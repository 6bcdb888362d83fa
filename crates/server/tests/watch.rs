//! `watch`: events as log lines.

mod common;

use std::io::Read;
use std::net::TcpStream;

use common::{Client, Scratch, TestServer, connect_unix, serve, wait_until};

fn watcher(server: &TestServer, topics: &str) -> Client<TcpStream> {
    let mut watcher = server.connect();
    watcher.request(format!("watch {topics}\r\n"), "OK\r\n");
    watcher
}

/// Returns the next line after checking and removing its time and number.
#[track_caller]
fn line(watcher: &mut Client<TcpStream>) -> String {
    let line = watcher.hear_until("\n");
    let (time, rest) = line.strip_prefix("ts=").and_then(|rest| rest.split_once(" gid=")).expect(&line);
    let (number, what) = rest.trim_end_matches('\n').split_once(' ').expect(&line);
    let (seconds, micros) = time.split_once('.').expect(&line);
    assert!(seconds.parse::<u64>().is_ok_and(|s| s > 1_600_000_000) && micros.len() == 6, "{line}");
    assert!(number.parse::<u64>().is_ok_and(|number| number > 0), "{line}");
    what.to_owned()
}

/// Like `line`, with the descriptor number replaced.
#[track_caller]
fn line_without_cfd(watcher: &mut Client<TcpStream>) -> String {
    let line = line(watcher);
    let words = line.split(' ').map(|word| match word.split_once('=') {
        Some(("cfd", number)) => {
            assert!(number.parse::<u32>().is_ok_and(|number| number > 2), "{number}");
            "cfd=N"
        }
        _ => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn watch_fetchers_reports_reads() {
    let server = serve("");
    for topics in ["fetchers", ""] {
        let mut w = watcher(&server, topics);
        let mut c = server.connect();
        c.request("set a 0 0 3\r\nabc\r\nget a b%\r\n", "STORED\r\nVALUE a 0 3\r\nabc\r\nEND\r\n");
        c.request("mg a v\r\nset old 0 -1 1\r\nx\r\nget old\r\n", "VA 3\r\nabc\r\nSTORED\r\nEND\r\n");
        // A set looks its key up, too.
        assert!(line(&mut w).starts_with("type=item_get key=a status="));
        assert_eq!(line_without_cfd(&mut w), "type=item_get key=a status=found clsid=1 cfd=N size=3");
        assert_eq!(line_without_cfd(&mut w), "type=item_get key=b%25 status=not_found clsid=0 cfd=N size=0");
        assert_eq!(line_without_cfd(&mut w), "type=item_get key=a status=found clsid=1 cfd=N size=3");
        assert!(line(&mut w).starts_with("type=item_get key=old status="));
        assert!(line(&mut w).starts_with("type=item_get key=old status="));
    }
}

#[test]
fn watch_fetchers_reports_the_lookups_of_changes() {
    let server = serve("");
    let mut w = watcher(&server, "fetchers");
    let mut c = server.connect();
    c.say("set a 0 0 3\r\nabc\r\nset a 0 0 2\r\n10\r\nadd a 0 0 1\r\nx\r\nincr a 1\r\nma b\r\ntouch a 0\r\n");
    c.say(format!(
        "set a 0 0 100000\r\n{}\r\nme a\r\nmd a I\r\nflush_all\r\ndelete a\r\n",
        "x".repeat(100_000)
    ));
    for expected in [
        "key=a status=not_found clsid=0 cfd=N size=0",
        "key=a status=found clsid=1 cfd=N size=3",
        "key=a status=found clsid=1 cfd=N size=2",
        "key=a status=found clsid=1 cfd=N size=2",
        "key=b status=not_found clsid=0 cfd=N size=0",
        "key=a status=found clsid=1 cfd=N size=2",
        "key=a status=found clsid=1 cfd=N size=2",
        "key=a status=found clsid=1 cfd=N size=100000",
        "key=a status=found clsid=1 cfd=N size=100000",
        "key=a status=flushed clsid=0 cfd=N size=0",
    ] {
        assert_eq!(line_without_cfd(&mut w), format!("type=item_get {expected}"));
    }
}

#[test]
fn watch_reports_mutations_and_deletions() {
    let server = serve("");
    let mut w = watcher(&server, "mutations deletions");
    let mut c = server.connect();
    c.say("set a 0 100 3\r\nabc\r\nadd a 0 0 1\r\nx\r\nreplace b 0 0 1\r\nx\r\nappend a 0 0 1\r\nd\r\n");
    c.say("cas a 0 0 1 9999\r\nx\r\ncas b 0 0 1 1\r\nx\r\nms a 2 T60\r\nhi\r\n");
    c.say(format!("set big 0 0 1048576\r\n{}\r\n", "x".repeat(1 << 20)));
    c.say(format!("set long 0 0 100000\r\n{}\r\n", "x".repeat(100_000)));
    c.say("delete a\r\ndelete a\r\nms a 2\r\nhi\r\nmd a I\r\nmd a\r\n");
    for expected in [
        "type=item_store key=a status=stored cmd=set ttl=100 clsid=1 cfd=N size=3",
        "type=item_store key=a status=not_stored cmd=add ttl=0 clsid=1 cfd=N size=1",
        "type=item_store key=b status=not_stored cmd=replace ttl=0 clsid=1 cfd=N size=1",
        "type=item_store key=a status=stored cmd=append ttl=0 clsid=1 cfd=N size=4",
        "type=item_store key=a status=exists cmd=cas ttl=0 clsid=1 cfd=N size=1",
        "type=item_store key=b status=not_found cmd=cas ttl=0 clsid=1 cfd=N size=1",
        "type=item_store key=a status=stored cmd=set ttl=60 clsid=1 cfd=N size=2",
        "type=item_store key=big status=too_large cmd=set ttl=0 clsid=1 cfd=N size=1048576",
        "type=item_store key=long status=stored cmd=set ttl=0 clsid=1 cfd=N size=100000",
        "type=deleted key=a cmd=delete clsid=1 size=2",
        "type=item_store key=a status=stored cmd=set ttl=0 clsid=1 cfd=N size=2",
        "type=deleted key=a cmd=md clsid=1 size=2",
    ] {
        assert_eq!(line_without_cfd(&mut w), expected);
    }
}

#[test]
fn watch_reports_evictions() {
    let server = serve("-m 8");
    let mut w = watcher(&server, "evictions");
    let mut c = server.connect();
    c.request(
        "set first:key 0 5000 3\r\nabc\r\nget first:key\r\n",
        "STORED\r\nVALUE first:key 0 3\r\nabc\r\nEND\r\n",
    );
    let value = "x".repeat(10_000);
    let mut stored = 0;
    while c.count("", "evictions") == 0 {
        for _ in 0..50 {
            c.say(format!("set key{stored} 0 0 10000 noreply\r\n{value}\r\n"));
            stored += 1;
        }
        assert!(stored < 10_000);
    }
    let evicted = line(&mut w);
    assert!(evicted.starts_with("type=eviction key="), "{evicted}");
    for field in ["fetch", "ttl", "la", "clsid", "size"] {
        assert!(evicted.contains(&format!(" {field}=")), "{evicted}");
    }
}

#[test]
fn watch_reports_connections() {
    let scratch = Scratch::new("watch");
    let path = scratch.path("socket");
    let server = serve(&format!("-p -1 -l 127.0.0.1 -s {}", path.display()));
    let mut w = watcher(&server, "connevents");
    let mut c = server.connect();
    let port = c.stream.local_addr().expect("connected").port();
    assert_eq!(
        line_without_cfd(&mut w),
        format!("type=conn_new rip=127.0.0.1 rport={port} transport=tcp cfd=N")
    );
    c.say("quit\r\n");
    let ended = format!("type=conn_close rip=127.0.0.1 rport={port} transport=tcp reason=normal cfd=N");
    assert_eq!(line_without_cfd(&mut w), ended);
    let unix = connect_unix(&path);
    assert_eq!(line_without_cfd(&mut w), "type=conn_new rip=unix rport=0 transport=local cfd=N");
    drop(unix);
    assert_eq!(
        line_without_cfd(&mut w),
        "type=conn_close rip=unix rport=0 transport=local reason=normal cfd=N"
    );
    let mut c = server.connect();
    line(&mut w);
    c.say(vec![b'x'; 3_000]);
    assert!(line(&mut w).contains(" reason=error "));
}

#[test]
fn watch_checks_permission_and_topics() {
    let server = serve("");
    let mut c = server.connect();
    c.request("watch nonsense\r\n", "ERROR\r\n");
    c.request("watch fetchers nonsense\r\n", "ERROR\r\n");
    c.request("mn\r\nwatch\r\n", "MN\r\nERROR cannot pipeline other commands before watch\r\n");
    let topics =
        "fetchers mutations evictions connevents deletions sysevents rawcmds proxyreqs proxyevents proxyuser";
    let mut watchers: Vec<_> = (0..20).map(|_| watcher(&server, topics)).collect();
    assert_eq!(c.count("", "log_watchers"), 20);
    c.request("watch fetchers\r\n", "WATCHER_TOO_MANY log watcher limit reached\r\n");
    // A watcher's input is ignored, but its disconnect is not.
    watchers[0].say("get a\r\nset b 0 0 1\r\nx\r\n");
    watchers.pop();
    wait_until("the watcher is removed", || c.count("", "log_watchers") == 19);
    c.request("get b\r\n", "END\r\n");
    let last = watcher(&server, "");
    assert_eq!(c.count("", "log_watchers"), 20);
    drop((watchers, last));
    wait_until("the watchers are removed", || c.count("", "log_watchers") == 0);
    assert!(c.count("", "log_worker_written") > 0 && c.count("", "log_watcher_sent") > 0);
}

#[test]
fn disconnected_watcher_leaves_no_output_to_others() {
    let server = serve("-t 1");
    let (mut c, mut other) = (server.connect(), server.connect());
    for _ in 0..300 {
        let gone = watcher(&server, "fetchers");
        c.say("get a\r\n".repeat(100));
        // Closing with unread lines resets the connection.
        drop(gone);
        other.request("mn\r\n", "MN\r\n");
        c.hear("END\r\n".repeat(100));
    }
}

#[test]
fn slow_watcher_misses_lines() {
    let scratch = Scratch::new("slow");
    let path = scratch.path("socket");
    let server = serve(&format!("-p -1 -l 127.0.0.1 -s {}", path.display()));
    let mut slow = connect_unix(&path);
    slow.request("watch fetchers\r\n", "OK\r\n");
    let mut c = server.connect();
    let many = format!("get {}\r\n", "k".repeat(240)).repeat(500);
    wait_until("lines are skipped", || {
        c.say(&many);
        c.hear("END\r\n".repeat(500));
        c.count("", "log_watcher_skipped") > 0
    });
    // Once it reads again, the next line reports the skipped ones.
    slow.stream.set_nonblocking(true).expect("a socket");
    let (mut heard, mut buffer) = (Vec::new(), vec![0; 1 << 20]);
    let reported = |heard: &[u8]| {
        let text = String::from_utf8_lossy(heard);
        let number = text.split_once("\n[skipped=").and_then(|(_, rest)| rest.split_once("]\n"));
        number.map(|(number, _)| number.parse::<u64>().expect("a number"))
    };
    wait_until("skipped lines are reported", || {
        c.request("get one more\r\n", "END\r\n");
        while let Ok(len) = slow.stream.read(&mut buffer) {
            heard.extend_from_slice(&buffer[..len]);
        }
        reported(&heard).is_some()
    });
    assert!(
        reported(&heard).is_some_and(|number| (1..=c.count("", "log_watcher_skipped")).contains(&number))
    );
}

#[test]
fn stalled_watcher_is_dropped() {
    let scratch = Scratch::new("never");
    let path = scratch.path("socket");
    let server = serve(&format!("-p -1 -l 127.0.0.1 --stall-timeout 1 -s {}", path.display()));
    let mut never = connect_unix(&path);
    never.request("watch fetchers\r\n", "OK\r\n");
    let mut c = server.connect();
    let many = format!("get {}\r\n", "k".repeat(240)).repeat(500);
    wait_until("the watcher is dropped", || {
        c.say(&many);
        c.hear("END\r\n".repeat(500));
        c.count("", "log_watchers") == 0
    });
    assert_eq!(c.count("fabcache", "stalled_kicks"), 1);
}
