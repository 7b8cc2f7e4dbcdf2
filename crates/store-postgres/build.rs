//! A new migration file has to reach the library without a change to its code.

fn main() {
    println!("cargo::rerun-if-changed=../../migrations");
}
