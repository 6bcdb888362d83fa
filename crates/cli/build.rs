//! Links the program as the server, for OpenSHMEM.

#[path = "../server/build.rs"]
mod server;

fn main() {
    server::main();
}
