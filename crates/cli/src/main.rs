//! The command-line tool: `fabcache bench …`, `fabcache fabric`.
//!
//! - `bench/`: measurements, a file for each subcommand; the measuring code is in the crate `fabcache-bench`.
//! - `fabric/`: lists the machine's fabric providers.

mod bench;
mod fabric;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tools for memcached-compatible caches.
#[derive(Debug, Parser)]
#[command(name = "fabcache", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures servers and the store
    #[command(subcommand)]
    Bench(Box<bench::Command>),
    /// Lists the machine's fabrics (RDMA, through libfabric), and which of them a server would use
    Fabric(fabric::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Bench(command) => bench::run(*command),
        Command::Fabric(arguments) => fabric::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Without a backtrace, whatever RUST_BACKTRACE says: a refused connection is no defect of the program.
        Err(error) => {
            eprintln!("fabcache: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_lines_are_parsed() {
        Arguments::command().debug_assert();
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        for line in [
            "fabcache bench latency --server tcp://h:1 --server unix:///s --server fab://h:1 -b MIX --quick --verify --json f",
            "fabcache bench dissect --server tcp://h:1 --server shm:///s -b get --sizes 64,4096 --quick",
            "fabcache bench dummy --listen tcp://127.0.0.1:0 --listen unix:///s --fault set-dropped@9 --threads 2",
            "fabcache bench nonblocking --server shm:///s --api i --drain wait,test --keys random,zipf -w 8,32 --items 9",
            "fabcache bench blocks --server tcp://h:1 --pair-bytes 8m --block-bytes 1000 --total-bytes 5g --window 4",
            "fabcache bench throughput --server tcp://h:1 --sizes 4,4096 --clients 1,2 --rate 1000,2e4 --arrivals even",
            "fabcache bench throughput --server tcp://h:1 --saturate --p99-us 500 --processes 2 --threads 2 --zipf 0.99",
            "fabcache bench mixture --server tcp://h:1 --average 100,2048 --get-share 0.5 --seconds 0.1",
            "fabcache bench multiget --server tcp://h:1 --batch 1,48 --pipeline 4 --keys 10",
            "fabcache bench worker",
            "fabcache bench latency --server tcp://h:1 --server unix:///s -b MIX --quick --verify --json f --report f",
            "fabcache bench report a.json b.json --out f",
            "fabcache bench hybrid --server h --scan UNIFORM --spill-factor 1.5 --memory 64 --penalty 0.5 --no-sleep -i 9",
            "fabcache bench trace --server shm:///s --file f --file - --format csv --skip-malformed --limit 9 --no-fill",
            "fabcache bench trace --server h --trace zipf-1.0,sizes --speed 10 --scale-ttl --window 1 --flush --scale 0.1",
            "fabcache bench restart /bin/a --base /bin/b --items 9,10 --stop kill --dir /d --quick --verify --json f",
            "fabcache bench restart a=/bin/a --against b=/bin/b --value-bytes 9 --rounds 2 --report f",
            "fabcache bench policies --quick --json f",
            "fabcache bench policies --trace loop,sizes --file f --sizes 0.5,20 --scale 0.1 --plot f",
            "fabcache bench policies --server a=/bin/a --against b=/bin/b",
            "fabcache bench compare a=/bin/a b=tcp://h:1 --set quick,latency --over tcp,shm --common-flags -t --quick --json d",
            "fabcache bench compare a=/bin/a --server-cpus 0-3,5 --client-cpus 4 --rounds 3",
            "fabcache bench compare a=/bin/a --no-pin --protocol meta --verify --key-bytes 30",
            "fabcache bench memory a=/bin/a b=/bin/b --json f --plot f",
            "fabcache bench store --threads 1,2 --json f --plot f",
            "fabcache bench fabric --provider shm --quick",
            "fabcache bench fabric a=/bin/a --against b=/bin/b --provider verbs,mlx5_0 --sizes 4 --windows 1,8 --json f",
            "fabcache fabric",
            "fabcache fabric verbs,mlx5_0 --json --patience 9",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
        for (line, culprit) in [
            ("fabcache bench latency", "--server"),
            ("fabcache bench latency --server fab://", "fab://HOST:PORT"),
            ("fabcache bench latency --server h -b put", "set, get, mix"),
            ("fabcache bench nonblocking --server tcp://h:1 --drain never", "wait and test"),
            ("fabcache bench nonblocking --server tcp://h:1 --window 0", "1..=1024"),
            ("fabcache bench blocks --server tcp://h:1 --pair-bytes 1t", "1t"),
            ("fabcache bench hybrid --server h --scan zipf", "uniform, normal"),
            ("fabcache bench trace --server h --trace zipf", "zipf-0.8"),
            ("fabcache bench trace --server h --format tsv", "auto, oracle"),
            ("fabcache bench trace --server h --scale-ttl", "--speed"),
            ("fabcache bench restart /bin/a --stop never", "clean or kill"),
            ("fabcache bench restart /bin/a --items 0", "--items"),
            ("fabcache bench restart /", "NAME=PROGRAM"),
            ("fabcache bench policies --trace zipf", "zipf-0.8"),
            ("fabcache bench policies --server a=/bin/a", "--against"),
            ("fabcache bench dissect --server h -b mix", "get, set"),
            ("fabcache bench latency --server h --rounds 0", "--rounds"),
            ("fabcache bench dummy", "--listen"),
            ("fabcache bench dummy --listen shm:///s", "tcp://"),
            ("fabcache bench dummy --listen unix:///s --fault odd@3", "wrong, foreign"),
            ("fabcache bench throughput --server tcp://h:1 --saturate --rate 5", "--rate"),
            ("fabcache bench throughput --server tcp://h:1 --arrivals odd", "poisson"),
            ("fabcache bench multiget --server tcp://h:1 --clients many", "--clients"),
            ("fabcache bench memory a", "NAME=PROGRAM"),
            ("fabcache bench fabric --against b=/bin/b", "NAME=PROGRAM"),
            ("fabcache fabric --patience 0", "--patience"),
            ("fabcache bench report", "FILE"),
            ("fabcache bench policies --quick --scale 2", "--scale"),
            ("fabcache bench compare", "SERVER"),
            ("fabcache bench compare a", "NAME=PROGRAM"),
            ("fabcache bench compare a=b --over udp", "tcp, fab, unix and shm"),
            ("fabcache bench compare a=b --server-cpus 3-1", "3-1"),
            ("fabcache bench compare a=b --no-pin --server-cpus 1", "--no-pin"),
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(culprit), "{line}: {error}");
        }
    }
}
