//! Pages of the results in `tests/report`: every subcommand, and a malicious file.

use std::path::Path;

use super::*;

const FILES: [&str; 11] = [
    "latency",
    "throughput",
    "multiget",
    "nonblocking",
    "hybrid",
    "blocks",
    "trace",
    "dissect",
    "restart",
    "unknown",
    "hostile",
];

fn results(name: &str) -> (String, Results) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/report");
    let file = format!("{name}.json");
    (file.clone(), Results::read(&folder.join(file)).expect(name))
}

/// Returns the names of all tags, in order; asserts that they are closed where HTML requires it.
fn tags(html: &str) -> Vec<&str> {
    let (_, after_style) = html.split_once("</style>").expect("a style sheet");
    let starts = after_style.match_indices('<').map(|(at, _)| &after_style[at + 1..]);
    let name = |rest: &'_ str| rest.find(|c: char| c.is_whitespace() || c == '>').unwrap_or(rest.len());
    starts.map(|rest| &rest[..name(rest)]).collect()
}

fn titles(html: &str) -> Vec<&str> {
    let captions = html.split("<figcaption>").skip(1);
    captions.map(|rest| rest.split_once("</figcaption>").expect("it ends").0).collect()
}

#[test]
fn files_cannot_inject_html() {
    let html = page(vec![results("hostile")]);
    let known = [
        "h1",
        "h2",
        "nav",
        "ul",
        "ol",
        "li",
        "a",
        "main",
        "section",
        "div",
        "dl",
        "dt",
        "dd",
        "code",
        "p",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "figure",
        "figcaption",
        "svg",
        "title",
        "desc",
        "path",
        "rect",
        "text",
        "g",
        "details",
        "summary",
        "html",
    ];
    for tag in tags(&html) {
        assert!(known.contains(&tag.trim_start_matches('/')), "<{tag}");
    }
    assert!(html.contains("&lt;script&gt;") && !html.contains("<script") && !html.contains('\u{202e}'));
    // Tags contain no text of the file: the only quoted texts are ours, and encoded CSV.
    for part in html.split("href=\"").skip(1) {
        let (url, _) = part.split_once('"').expect("it ends");
        assert!(url.starts_with("data:text/csv;charset=utf-8,") || url.starts_with("#s"), "{url}");
    }
}

#[test]
fn every_figure_has_a_title_data_and_no_nan() {
    for name in FILES {
        let html = page(vec![results(name)]);
        let count = |text: &str| html.matches(text).count();
        let figures = count("<figure ");
        assert!(figures > 0, "{name}");
        assert_eq!((count("role=img"), count("<summary>Data")), (figures, figures), "{name}");
        assert!(!html.contains("NaN") && !html.contains("inf\""), "{name}");
        for tag in ["svg", "figure", "table", "details", "section", "div", "ul", "ol", "g"] {
            let open = tags(&html).into_iter().filter(|found| *found == tag).count();
            assert_eq!(open, count(&format!("</{tag}>")), "{name} {tag}");
        }
    }
}

#[test]
fn varying_conditions_select_the_figures() {
    let page_of = |name: &str| page(vec![results(name)]);
    for (name, expected) in [
        ("latency", "Latency, p50 and p99: get"),
        ("throughput", "Operations a second: get, values of 4 KiB"),
        ("throughput", "Distribution of latencies: get, 120k offered a second"),
        ("multiget", "Latency, p50 and p99: get"),
        ("nonblocking", "Blocking time an operation and time an operation: drain wait, keys zipf"),
        ("hybrid", "Success rate: get"),
        ("blocks", "Blocking bytes a second and bytes a second"),
        ("trace", "Hit ratio"),
        ("dissect", "Where the time goes: set"),
        ("restart", "Recovery: restart"),
        ("unknown", "Hops walked: fetch"),
    ] {
        let html = page_of(name);
        assert!(titles(&html).contains(&expected), "{name} {:?}", titles(&html));
    }
    let html = page_of("nonblocking");
    assert!(html.contains("memcached tcp, bget") && html.contains("fabcached shm, get"));
    assert!(page_of("throughput").contains("as many as offered"));
    assert!(page_of("dissect").contains("drawn to the left"));
    assert!(page_of("latency").contains("fabcached shm / memcached tcp"));
}

#[test]
fn noise_is_no_hop() {
    let (file, mut dissect) = results("dissect");
    let drawn = |html: &str| html.matches(" parts each").count();
    let parts = |html: &str| html.matches("of 5 parts each").count();
    let before = page(vec![(file.clone(), dissect.clone())]);
    assert!(parts(&before) > 0 && parts(&before) == drawn(&before));
    for sample in &mut dissect.samples {
        sample.figures.insert("client_noise_ns".into(), 1_000.0);
    }
    let after = page(vec![(file, dissect)]);
    assert_eq!(parts(&after), drawn(&before));
}

#[test]
fn the_clients_limit_is_noted_beside_the_figure() {
    let (file, mut throughput) = results("throughput");
    let note = "Limited by the clients and their way to the server (hollow marks): fabcached tcp, 16 clients";
    assert!(page(vec![(file.clone(), throughput.clone())]).contains(note));
    throughput.samples.iter_mut().for_each(|sample| sample.ceiling_per_s = None);
    let html = page(vec![(file, throughput)]);
    assert!(!html.contains("imited by the clients") && !html.contains("\"m hollow\""));
}

#[test]
fn files_of_one_subcommand_share_figures() {
    let (_, one) = results("latency");
    let mut other = one.clone();
    other.targets[0].name = "another".into();
    other
        .samples
        .iter_mut()
        .filter(|s| s.target == "fabcached shm")
        .for_each(|s| s.target = "another".into());
    let html = page(vec![("x/a.json".into(), one.clone()), ("b.json".into(), other), ("b.json".into(), one)]);
    assert_eq!(html.matches("<h2>").count(), 1);
    for name in
        ["fabcached tcp (a)", "fabcached tcp (b)", "fabcached tcp (b) 2", ">another<", "fabcached shm (a)"]
    {
        assert!(html.contains(name), "{name}");
    }
    // Ratios are not computed across runs.
    assert_eq!(html.matches("Geometric means").count(), 3);
}

#[test]
fn empty_results_are_drawn() {
    let (file, mut empty) = results("latency");
    empty.samples.clear();
    assert!(!page(vec![(file.clone(), empty.clone())]).contains("<figure "));
    empty.targets.clear();
    assert!(page(vec![(file, empty)]).contains("<h2>latency</h2>"));
    assert!(page(Vec::new()).contains("<h1>"));
}
