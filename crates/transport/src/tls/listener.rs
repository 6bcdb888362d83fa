//! Where connections under TLS arrive.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, RwLock};

use rustls::{ServerConfig, ServerConnection};

use super::TlsLink;
use crate::contract::{Kind, Link, Listener, Peer};

/// The certificates of all TLS listeners; they may be replaced while the server runs.
#[derive(Debug)]
pub struct TlsContext(RwLock<Arc<ServerConfig>>);

impl TlsContext {
    /// A context.
    pub fn new(config: Arc<ServerConfig>) -> TlsContext {
        TlsContext(RwLock::new(config))
    }

    /// New connections use `config`; existing ones keep theirs.
    pub fn replace(&self, config: Arc<ServerConfig>) {
        *self.0.write().expect("no thread panics while it replaces the certificates") = config;
    }

    /// What new connections use.
    pub fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.read().expect("no thread panics while it replaces the certificates"))
    }
}

/// A stream listener whose connections start with a handshake.
pub struct TlsListener {
    inner: Box<dyn Listener>,
    context: Arc<TlsContext>,
}

impl TlsListener {
    /// Puts TLS over the links of `inner`.
    pub fn new(inner: Box<dyn Listener>, context: Arc<TlsContext>) -> TlsListener {
        TlsListener { inner, context }
    }
}

impl Listener for TlsListener {
    fn accept(&self) -> io::Result<Option<Box<dyn Link>>> {
        let Some(link) = self.inner.accept()? else { return Ok(None) };
        let tls = ServerConnection::new(self.context.current()).map_err(io::Error::other)?;
        Ok(Some(Box::new(TlsLink::new(link, tls))))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.descriptor()
    }

    fn local(&self) -> Peer {
        self.inner.local()
    }

    fn kind(&self) -> Kind {
        self.inner.kind()
    }
}
