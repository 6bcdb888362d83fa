//! Links the program so that OpenSHMEM finds the end of its data, as that of the server.

include!("../server/build.rs");
