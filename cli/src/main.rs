//! The program. All of it is in the library, which is compiled beside the crates that it uses; a program waits for them.

fn main() -> std::process::ExitCode {
    kindred::main()
}
