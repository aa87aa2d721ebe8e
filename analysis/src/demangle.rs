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
    match symbol.starts_with("_Z") {
        true => demangle_cpp(symbol).unwrap_or_else(|| symbol.to_string()),
        false => symbol.to_string(),
    }
}

fn demangle_cpp(symbol: &str) -> Option<String> {
    let plain = plain_identifiers(symbol.as_bytes());
    let name = cpp_demangle::Symbol::new(&plain).ok()?.demangle().ok()?;
    Some(restore_identifiers(&name))
}

/// Stands before the two digits of a byte that the demangler does not take in a name.
const BYTE_MARK: &str = "zQx";

/// Stands for the `operator"" ` of a literal operator, which the demangler prints as a scope.
const LITERAL_MARK: &str = "zQl";

/// The same symbol with identifiers that the demangler reads: ASCII, and no literal operators.
fn plain_identifiers(symbol: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(symbol.len());
    let literal_operator = literal_operator(symbol);
    let mut at = 0;
    while at < symbol.len() {
        let prefix = if Some(at) == literal_operator { LITERAL_MARK } else { "" };
        let Some((identifier, next)) =
            identifier(symbol, at + if prefix.is_empty() { 0 } else { 2 })
        else {
            plain.push(symbol[at]);
            at += 1;
            continue;
        };
        let mut text = prefix.to_string();
        for byte in identifier {
            match byte.is_ascii() {
                true => text.push(char::from(*byte)),
                false => text += &format!("{BYTE_MARK}{byte:02x}"),
            }
        }
        plain.extend(format!("{}{text}", text.len()).bytes());
        at = next;
    }
    plain
}

/// The identifier whose length stands at `at`, and what is behind it.
fn identifier(symbol: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let digits = symbol.get(at..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&symbol[at..at + digits]).ok()?;
    let length: usize = number.parse().ok()?;
    let end = (at + digits).checked_add(length)?;
    let identifier = symbol.get(at + digits..end)?;
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || !byte.is_ascii();
    (!identifier.is_empty() && identifier.iter().all(is_name)).then_some((identifier, end))
}

/// Where the `li` of a literal operator's name stands: first, or behind its namespaces. Elsewhere
/// these letters are the types `long` and `int`.
fn literal_operator(symbol: &[u8]) -> Option<usize> {
    let mut at = 2;
    if symbol.get(at) == Some(&b'N') {
        at += 1;
        if symbol[at..].starts_with(b"St") {
            at += 2;
        }
        while let Some((_, next)) = identifier(symbol, at) {
            at = next;
        }
    }
    let is_one = symbol.get(at..)?.starts_with(b"li") && identifier(symbol, at + 2).is_some();
    is_one.then_some(at)
}

/// Undoes [`plain_identifiers`] in a demangled name.
fn restore_identifiers(name: &str) -> String {
    let name = name.replace(LITERAL_MARK, "operator\"\" ");
    let mut parts = name.split(BYTE_MARK);
    let mut bytes: Vec<u8> = parts.next().unwrap_or_default().into();
    for part in parts {
        let byte = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.extend(byte);
        bytes.extend(part.get(2..).unwrap_or_default().bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
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
    fn names_beyond_ascii_are_whole() {
        assert_eq!(demangle("_Z7größei"), "größe(int)");
        assert_eq!(demangle("_ZN4naïf3runEv"), "_ZN4naïf3runEv");
        assert_eq!(demangle("_ZN5naïf3runEv"), "naïf::run()");
    }

    #[test]
    fn literal_operators_are_operators() {
        assert_eq!(demangle("_Zli3_kmy"), "operator\"\" _km(unsigned long long)");
        assert_eq!(
            demangle("_ZNSt8literals15string_literalsli1sEPKcm"),
            "std::literals::string_literals::operator\"\" s(char const*, unsigned long)"
        );
        assert_eq!(demangle("_Z1fli3Foo"), "f(long, int, Foo)");
    }

    #[test]
    fn rust_names_lose_their_hash() {
        assert_eq!(demangle("_ZN3app4main17h0123456789abcdefE"), "app::main");
        assert_eq!(demangle("_RNvCsgStHSCytQ6I_3app4main"), "app::main");
    }
}
