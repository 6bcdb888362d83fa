//! The process: its user, limits, CPUs, background, and the service manager.

pub mod background;
pub mod cpus;
pub mod limits;
pub mod pidfile;
pub mod privileges;
pub mod signals;
