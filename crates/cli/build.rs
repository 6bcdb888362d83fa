//! Links the program so that OpenSHMEM finds the end of its data, as that of the server.

#[path = "../server/build.rs"]
mod server;

fn main() {
    server::main();
}
