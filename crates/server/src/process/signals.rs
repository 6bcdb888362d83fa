//! Signals become orders.

use std::sync::mpsc::Sender;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::shared::ProcessRequest;

/// Sends an order for every signal: TERM and INT stop, USR1 stops gracefully, HUP reloads.
///
/// # Errors
/// The system refuses.
pub fn become_orders(orders: Sender<ProcessRequest>) -> Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1]).context("cannot take signals")?;
    let run = move || {
        for signal in signals.forever() {
            let order = match signal {
                SIGHUP => ProcessRequest::Reload,
                SIGUSR1 => ProcessRequest::StopGracefully,
                _ => ProcessRequest::Stop,
            };
            if orders.send(order).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(run)
        .context("cannot start the signal thread")?;
    Ok(())
}
