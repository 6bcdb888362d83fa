//! Configuration strings (libmemcached_configuration(3)): `memcached()` and `libmemcached_check_configuration()`.

mod apply;
mod parser;
mod token;

pub use apply::{libmemcached_check_configuration, memcached};
pub use parser::{Setting, Settings, SyntaxError};
pub use token::Token;
