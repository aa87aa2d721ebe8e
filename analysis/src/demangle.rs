//! Symbol names as linkers know them → names as people write them.

/// What compilers append to a copy of a function: the hooks speak of the function itself.
const CLONE_MARKS: [&str; 7] =
    [".lto_priv.", ".constprop.", ".isra.", ".part.", ".cold", ".llvm.", ".localalias"];

/// The name of a C, C++ or Rust symbol for people.
pub fn demangle(symbol: &str) -> String {
    let symbol = without_clone_marks(symbol);
    if let Ok(rust) = rustc_demangle::try_demangle(symbol) {
        return format!("{rust:#}");
    }
    let cpp = cpp_demangle::Symbol::new(symbol.as_bytes()).ok();
    let name = cpp.filter(|_| symbol.starts_with("_Z")).and_then(|cpp| cpp.demangle().ok());
    name.unwrap_or_else(|| symbol.to_string())
}

fn without_clone_marks(symbol: &str) -> &str {
    let first = CLONE_MARKS.iter().filter_map(|mark| symbol.find(mark)).min();
    match first {
        Some(at) if at > 0 => &symbol[..at],
        _ => symbol,
    }
}

#[cfg(test)]
mod tests {
    use super::demangle;

    #[test]
    fn c_names_stay() {
        assert_eq!(demangle("main"), "main");
        assert_eq!(demangle("größe"), "größe");
    }

    #[test]
    fn a_copy_is_its_function() {
        assert_eq!(demangle("helper.lto_priv.0"), "helper");
        assert_eq!(demangle("_Z4initv.constprop.0.isra.0"), "init()");
    }

    #[test]
    fn cpp_names_are_whole() {
        assert_eq!(demangle("_ZNK3BoxIiLi3EE3sumEv"), "Box<int, 3>::sum() const");
        assert_eq!(
            demangle("_ZN1a2v112_GLOBAL__N_14anonEi"),
            "a::v1::(anonymous namespace)::anon(int)"
        );
        assert_eq!(
            demangle("_Z5countIJidcEEiDpT_"),
            "int count<int, double, char>(int, double, char)"
        );
    }

    #[test]
    fn rust_names_lose_their_hash() {
        assert_eq!(demangle("_ZN3app4main17h0123456789abcdefE"), "app::main");
        assert_eq!(demangle("_RNvCsgStHSCytQ6I_3app4main"), "app::main");
    }
}
