//! Facts about the machine for the interpretation of its figures.

use std::collections::BTreeMap;
use std::path::Path;

/// The directory that describes the CPUs.
const CPUS: &str = "/sys/devices/system/cpu";
/// Names of the CPU model in `/proc/cpuinfo`, by architecture.
const MODELS: [&str; 4] = ["model name", "cpu model", "Processor", "uarch"];

/// Returns CPU model, number of CPUs and kernel in one line.
pub fn line() -> String {
    let cpuinfo = read("/proc/cpuinfo");
    format!("{}, {} CPUs, Linux {}", model(&cpuinfo), cpus(&cpuinfo), read("/proc/sys/kernel/osrelease"))
}

/// Returns the known facts by name, without those that the system does not report.
pub fn facts() -> BTreeMap<String, String> {
    let cpuinfo = read("/proc/cpuinfo");
    let reported = [
        ("processor", Some(model(&cpuinfo).to_owned())),
        ("CPUs", Some(cpus(&cpuinfo).to_string())),
        ("caches", caches()),
        ("memory", memory(&read("/proc/meminfo"))),
        ("kernel", Some(read("/proc/sys/kernel/osrelease"))),
        ("architecture", Some(std::env::consts::ARCH.to_owned())),
        ("virtualised", Some(virtualised(&cpuinfo))),
        ("frequency governor", Some(read(&format!("{CPUS}/cpu0/cpufreq/scaling_governor")))),
        ("transparent huge pages", Some(chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled")))),
        ("huge pages reserved", Some(read("/proc/sys/vm/nr_hugepages"))),
        ("simultaneous multithreading", Some(read(&format!("{CPUS}/smt/control")))),
        ("mitigations", mitigations(Path::new(&format!("{CPUS}/vulnerabilities")))),
    ];
    let known = reported.into_iter().filter_map(|(name, fact)| Some((name.to_owned(), fact?)));
    known.filter(|(_, fact)| !fact.is_empty()).collect()
}

/// Returns the contents of a file; empty if it cannot be read.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Returns the value in a line `name : value`.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (known, value) = line.split_once(':')?;
        (known.trim() == name).then_some(value.trim())
    })
}

fn model(cpuinfo: &str) -> &str {
    MODELS.iter().find_map(|name| field(cpuinfo, name)).unwrap_or("unknown processor")
}

fn cpus(cpuinfo: &str) -> usize {
    let listed = cpuinfo.lines().filter(|line| {
        line.split_once(':').is_some_and(|(name, value)| {
            name.trim() == "processor" && value.trim().bytes().all(|byte| byte.is_ascii_digit())
        })
    });
    match listed.count() {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count,
    }
}

/// Returns the caches of the first CPU, the nearest first.
fn caches() -> Option<String> {
    let cache = |index: usize| {
        let reported = |name: &str| read(&format!("{CPUS}/cpu0/cache/index{index}/{name}"));
        let (level, kind, size) = (reported("level"), reported("type"), reported("size"));
        let kind = match kind.as_str() {
            "Data" => "d",
            "Instruction" => "i",
            _ => "",
        };
        (!size.is_empty()).then(|| format!("L{level}{kind} {size} (CPUs {})", reported("shared_cpu_list")))
    };
    let all: Vec<String> = (0..).map_while(cache).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

fn memory(meminfo: &str) -> Option<String> {
    let kilobytes: u64 = field(meminfo, "MemTotal")?.split_whitespace().next()?.parse().ok()?;
    Some(format!("{} MB", kilobytes >> 10))
}

/// Describes the virtualisation; only x86 CPUs have a flag for it.
fn virtualised(cpuinfo: &str) -> String {
    let flagged =
        field(cpuinfo, "flags").map(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"));
    let by = read("/sys/class/dmi/id/sys_vendor");
    match flagged {
        Some(true) if by.is_empty() => "yes".into(),
        Some(true) => format!("yes ({by})"),
        Some(false) => "no".into(),
        None => String::new(),
    }
}

/// Returns the choice in brackets of a list.
fn chosen(list: &str) -> String {
    let inside = list.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or_else(|| list.to_owned(), |(choice, _)| choice.to_owned())
}

/// Returns the kernel's mitigations for processor vulnerabilities, where the processor is affected.
fn mitigations(folder: &Path) -> Option<String> {
    let mut all: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let state = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let state = state.trim();
        if !state.is_empty() && state != "Not affected" {
            all.push(format!("{}: {state}", entry.file_name().to_string_lossy()));
        }
    }
    all.sort();
    Some(if all.is_empty() { "none needed".into() } else { all.join("; ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUINFO: &str = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu hypervisor sse\n\n\
                           processor\t: 1\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu hypervisor sse\n";

    #[test]
    fn processors_are_described() {
        assert_eq!((model(CPUINFO), cpus(CPUINFO)), ("Some CPU @ 2 GHz", 2));
        assert!(virtualised(CPUINFO).starts_with("yes"));
        assert_eq!(virtualised("flags : fpu sse"), "no");
        // Some architectures lack the model name or the flag.
        assert_eq!(
            (model("processor : 0\n"), virtualised("processor : 0\n")),
            ("unknown processor", String::new())
        );
        assert_eq!(memory("MemTotal:        8131072 kB\nMemFree: 1 kB\n").as_deref(), Some("7940 MB"));
        assert_eq!(chosen("always [madvise] never"), "madvise");
    }

    #[test]
    fn this_machine_is_known() {
        let facts = facts();
        for name in ["processor", "CPUs", "memory", "kernel", "architecture"] {
            assert!(facts.get(name).is_some_and(|fact| !fact.is_empty()), "{name}: {facts:?}");
        }
        assert!(line().contains(&facts["kernel"]), "{}", line());
    }
}
