//! The process: its user, protection, limits, CPUs, heap, background, and the service manager; the processes of its clients.

pub mod background;
pub mod cpus;
pub mod environment;
pub mod file_signals;
pub mod heap;
pub mod limits;
pub mod peer;
pub mod pidfile;
pub mod privileges;
pub mod protection;
pub mod signals;
