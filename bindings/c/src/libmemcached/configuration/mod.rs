//! Configuration strings (libmemcached_configuration(3)): `memcached()` and `libmemcached_check_configuration()`.

mod parser;
mod token;

pub use parser::{Setting, Settings, SyntaxError};
pub use token::Token;
