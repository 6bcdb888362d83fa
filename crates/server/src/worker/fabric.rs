//! The hooks of a worker's fabric endpoint, which it drives as a source.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use fabcache_transport::Source;

use super::source::SourceHooks;
use crate::commands::Context;

/// The hooks of a worker's endpoint.
#[derive(Debug, Default)]
pub struct FabricHooks {
    /// Dropped messages that are counted already.
    dropped: u64,
}

impl SourceHooks for FabricHooks {
    fn name(&self) -> &'static str {
        "the fabric"
    }

    fn reopen(&mut self, ctx: &mut Context) -> Result<Box<dyn Source>> {
        let shared = Arc::clone(&ctx.shared);
        let opened = shared.fabric.opened().context("it is off")?;
        let port = opened.open_port()?;
        opened.set_buffer_bytes(ctx.worker, port.registered_bytes());
        self.dropped = 0;
        ctx.port = Some(port.clone());
        Ok(Box::new(port))
    }

    fn progressed(&mut self, ctx: &Context) {
        let Some(port) = &ctx.port else { return };
        let dropped = port.dropped_messages();
        let more = dropped - std::mem::replace(&mut self.dropped, dropped);
        if more > 0 {
            ctx.counters().fabric_dropped_messages.add(more);
        }
    }

    fn failed(&mut self, ctx: &mut Context) {
        ctx.port = None;
        if let Some(opened) = ctx.shared.fabric.opened() {
            opened.set_buffer_bytes(ctx.worker, 0);
        }
        ctx.counters().fabric_failures.inc();
    }
}
