//! Links over a real provider: `FABCACHE_PROVIDER` names it, with its interface behind a comma if that matters.

#[path = "fabric/client.rs"]
mod client;

use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use client::{Client, END, Endpoint, RING_BYTES, domain, wait_until};
use fabcache_fabric::Domain;
use fabcache_fabric::channel::{MESSAGE_BYTES, PIECE_BYTES_MAX, receives_for};
use fabcache_transport::conformance::{self, Way, run};
use fabcache_transport::fabric::bounds::{BOUNCES, GROWTH, LEAST_CREDITS, SENDS};
use fabcache_transport::fabric::{FabricLink, FabricPort};
use fabcache_transport::tcp::{TcpListener, TcpOptions};
use fabcache_transport::{Kind, Link, Listener, Peer, Received, SocketLink};

/// A port, and where clients come to it.
struct Server {
    domain: Arc<Domain>,
    listener: TcpListener,
    port: Mutex<FabricPort>,
}

impl Server {
    fn start(receives: u32) -> Server {
        let domain = domain();
        let options = TcpOptions { backlog: 256, share_address: false };
        Server {
            listener: TcpListener::bind("127.0.0.1:0".parse().expect("an address"), &options)
                .expect("loopback"),
            port: Mutex::new(FabricPort::open(&domain, receives).expect("a port")),
            domain,
        }
    }

    fn port(&self) -> std::sync::MutexGuard<'_, FabricPort> {
        self.port.lock().expect("no test panics while it holds the port")
    }

    fn progress(&self) -> Vec<u64> {
        let mut ready = Vec::new();
        self.port().progress(&mut ready).expect("the port works");
        ready
    }

    /// A client that has come by TCP and says who it is, made a link.
    fn accept(&self, tag: u64) -> io::Result<Option<FabricLink>> {
        let Some(link) = self.listener.accept()? else { return Ok(None) };
        let Ok(SocketLink::Tcp(mut tcp)) = link.into_socket() else { panic!("it came by TCP") };
        let mut said = Vec::new();
        let end = Instant::now() + END;
        while said.len() < client::HELLO_BYTES {
            assert!(Instant::now() < end, "a client says nothing");
            let mut buffer = [0; client::HELLO_BYTES];
            match tcp.receive(&mut buffer)? {
                Received::Bytes(len) => said.extend_from_slice(&buffer[..len]),
                Received::Nothing => std::thread::sleep(Duration::from_micros(100)),
                Received::End => return Ok(None),
            }
        }
        let attached = self.port().attach(tcp, tag, &client::read_hello(&said));
        let (mut link, granted) = attached.map_err(|(_, error)| io::Error::other(error))?;
        link.answer(&client::answer(self.port().name(), granted))?;
        Ok(Some(link))
    }

    /// A client and its link.
    fn pair(&self, endpoint: &Arc<Endpoint>) -> (Client, FabricLink) {
        let client = Client::connect(self.listener.address(), endpoint);
        let link = wait_until(|| self.accept(0).expect("accepting works"));
        (client.finish(), link)
    }

    fn endpoint(&self) -> Arc<Endpoint> {
        Endpoint::open(&self.domain)
    }
}

impl Listener for Server {
    fn accept(&self) -> io::Result<Option<Box<dyn Link>>> {
        // Links that were dropped get on by this.
        self.progress();
        Ok(Server::accept(self, 0)?.map(|link| Box::new(link) as _))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.descriptor()
    }

    fn local(&self) -> Peer {
        self.listener.local()
    }

    fn kind(&self) -> Kind {
        Kind::Fabric
    }
}

/// Clients of the suite, which drive themselves, and a thread that gets dropped links on.
struct Suite {
    server: Server,
    endpoint: Arc<Endpoint>,
}

impl Way for Suite {
    fn listener(&self) -> &dyn Listener {
        &self.server
    }

    fn connect(&self) -> io::Result<Box<dyn conformance::Client>> {
        let client = Client::connect(self.server.listener.address(), &self.endpoint);
        Ok(Box::new(client))
    }
}

#[test]
#[ignore = "needs libfabric: cargo xtask rdma"]
fn the_fabric_keeps_the_contract() {
    let server = Server::start(64);
    let endpoint = server.endpoint();
    let suite = Suite { server, endpoint };
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                suite.server.progress();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&suite)));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Err(panic) = ran {
            std::panic::resume_unwind(panic);
        }
    });
    wait_until(|| {
        suite.server.progress();
        (suite.server.port().links() == 0).then_some(())
    });
    assert_eq!(suite.server.port().dropped_messages(), 0);
}
