//! Target triples: Rust's spelling → the one that gcc, Debian and CMake use for directories.

/// The triple as `gcc -dumpmachine` spells it, without a vendor.
///
/// ```
/// assert_eq!(callsight_build::gnu_triple("x86_64-unknown-linux-gnu"), "x86_64-linux-gnu");
/// assert_eq!(callsight_build::gnu_triple("armv7-unknown-linux-gnueabihf"), "arm-linux-gnueabihf");
/// ```
pub fn gnu_triple(rust_triple: &str) -> String {
    let (arch, rest) = rust_triple.split_once('-').unwrap_or((rust_triple, ""));
    let arch = match arch {
        "i386" | "i486" | "i586" | "i686" => "i386",
        "riscv64gc" | "riscv64imac" => "riscv64",
        arm if arm.starts_with("armv") || arm.starts_with("thumbv") => "arm",
        other => other,
    };
    let rest =
        ["unknown-", "pc-"].iter().find_map(|vendor| rest.strip_prefix(vendor)).unwrap_or(rest);
    if rest.is_empty() { arch.to_owned() } else { format!("{arch}-{rest}") }
}
