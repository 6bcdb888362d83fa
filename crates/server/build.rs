//! Links the program so that OpenSHMEM takes no data of it for symmetric memory.

/// Open MPI's liboshmem exchanges the addresses of all writable memory below the symbol `_end` with the other PEs, and expects
/// equally many areas in each (oshmem/mca/memheap/base/memheap_base_static.c): below the program's or the library's own `_end`
/// may lie buffers and stacks, whose number depends on where the kernel puts them, and PEs then crash. Nothing lies below this
/// one.
const END_OF_DATA: [&str; 2] = ["-Wl,--defsym=_end=1", "-Wl,--export-dynamic-symbol=_end"];

/// Passes the linker its arguments.
pub fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        for argument in END_OF_DATA {
            println!("cargo::rustc-link-arg-bins={argument}");
        }
    }
}
