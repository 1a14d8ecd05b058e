// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that include/gdrfab.h is what cbindgen and tests/header/layout.rs make of src/capi, and that nothing is lost on the way.
//!
//! cbindgen leaves out what it does not understand with no more than a log line. Its warnings are therefore failures here, and items that
//! it leaves out silently are counted. `make header` (which sets `GDRFAB_BLESS=1`) rewrites the committed file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::{env, fs};

#[path = "header/layout.rs"]
mod layout;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// cbindgen reports through the `log` crate, which has one sink for each process.
struct Warnings(Mutex<Vec<String>>);

static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record) {
        if self.enabled(record.metadata()) {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// True if a warning is expected: a private constant, static or callback of capi stays out of the header, unless it has a public name. Two
/// names are not in capi: `struct iovec` is the system's, and `u64::MAX` is written as UINT64_MAX.
fn is_expected(warning: &str) -> bool {
    let left_out = warning.contains("(not `pub`)") || warning.contains("(not `no_mangle`");
    let foreign = ["Can't find iovec.", "Can't find u64."].iter().any(|known| warning.starts_with(known));
    foreign || (left_out && !warning.to_ascii_lowercase().contains("::gdrfab_"))
}

/// Only src/capi is parsed: `pub` constants of the layers below are not part of the ABI.
fn generate() -> String {
    let config = cbindgen::Config::from_file(root().join("cbindgen.toml")).expect("cbindgen.toml");
    let bindings = cbindgen::Builder::new().with_config(config).with_src(root().join("src/capi/mod.rs")).generate().expect("cbindgen");
    let mut text = Vec::new();
    bindings.write(&mut text);
    layout::lay_out(&String::from_utf8(text).expect("the header is UTF-8"), &root().join("src/capi"))
}

#[test]
fn header_is_current() {
    log::set_logger(&WARNINGS).expect("the only logger of this process");
    log::set_max_level(log::LevelFilter::Warn);
    let made = generate();
    let warnings: Vec<_> = WARNINGS.0.lock().unwrap().drain(..).filter(|w| !is_expected(w)).collect();
    assert!(warnings.is_empty(), "cbindgen left something out:\n{}", warnings.join("\n"));

    let path = root().join("include/gdrfab.h");
    if env::var_os("GDRFAB_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &made).unwrap();
    }
    let committed = fs::read_to_string(&path).expect("include/gdrfab.h; `make header` writes it");
    if let Some((n, (old, new))) = committed.lines().zip(made.lines()).enumerate().find(|(_, (old, new))| old != new) {
        panic!("include/gdrfab.h is stale from line {}: run `make header`\n  committed: {old}\n  generated: {new}", n + 1);
    }
    assert_eq!(committed.len(), made.len(), "include/gdrfab.h is stale: run `make header`");

    // Items that the generator loses silently.
    let exported = exported_functions(&root().join("src/capi"));
    let declared = declared_functions(&made);
    assert_eq!(exported, declared, "functions of src/capi (left) and of the header (right) differ");
    assert_names(&made);
    assert_constants_have_a_type(&made);
    assert_structs_are_complete(&made);
    assert!(!declarations(&made).contains("ptrdiff_t"), "isize becomes ptrdiff_t in C; write libc::ssize_t in src/capi");
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The name after `fn` that follows each `no_mangle`; a function made by a macro has none, and fails here.
fn exported_functions(dir: &Path) -> BTreeSet<String> {
    let mut files = Vec::new();
    sources(dir, &mut files);
    let mut names = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let code: String = text.lines().map(|l| l.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
        for after in code.split("#[unsafe(no_mangle)]").skip(1) {
            let signature = after.split('{').next().unwrap_or("");
            let name = signature.split("fn ").nth(1).and_then(|s| s.split('(').next()).unwrap_or("").trim();
            let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            assert!(plain, "{}: an exported function whose name cbindgen cannot see: {signature}", file.display());
            names.insert(name.to_string());
        }
    }
    names
}

/// The header without comments and preprocessor lines.
fn declarations(header: &str) -> String {
    let mut text = String::new();
    let mut rest = header;
    while let Some(start) = rest.find("/*") {
        text.push_str(&rest[..start]);
        let end = rest[start..].find("*/").expect("an open comment in the header");
        rest = &rest[start + end + 2..];
    }
    text.push_str(rest);
    text.lines().filter(|l| !l.trim_start().starts_with('#') && !l.trim_end().ends_with('\\')).collect::<Vec<_>>().join("\n")
}

fn declared_functions(header: &str) -> BTreeSet<String> {
    let text = declarations(header);
    let mut depth = 0;
    let mut names = BTreeSet::new();
    for statement in text.split_inclusive([';', '{', '}']) {
        let is_prototype = depth == 0 && statement.ends_with(';') && statement.contains('(') && !statement.contains("typedef");
        if is_prototype {
            let name = statement.split('(').next().unwrap().rsplit(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap();
            names.insert(name.to_string());
        }
        // The braces of extern "C" are no block of declarations.
        match statement.chars().last() {
            Some('{') if !statement.contains("extern \"C\"") => depth += 1,
            Some('}') if depth > 0 => depth -= 1,
            _ => (),
        }
    }
    names
}

/// A header shares the global namespace with its user, so names must have the prefix.
fn assert_names(header: &str) {
    for line in header.lines() {
        if let Some(name) = line.strip_prefix("#define ") {
            assert!(name.starts_with("GDRFAB_"), "not our namespace: {line}");
        }
    }
    let text = declarations(header);
    for name in text.split("typedef struct ").skip(1).filter_map(|s| s.split_whitespace().next()) {
        assert!(name.starts_with("gdrfab_"), "not our namespace: struct {name}");
    }
}

/// `1 << 40` is valid Rust for a u64, and an int overflow in C.
fn assert_constants_have_a_type(header: &str) {
    for line in header.lines().filter(|l| l.starts_with("#define ") && l.contains("<<")) {
        let base = line.split("<<").next().unwrap().trim_end();
        assert!(base.ends_with(['u', 'l', 'U', 'L']), "an untyped shift, write 1u64 << n in src/capi: {line}");
    }
}

/// A repr(C) struct with a field that cbindgen cannot evaluate becomes opaque silently.
fn assert_structs_are_complete(header: &str) {
    let mut files = Vec::new();
    sources(&root().join("src/capi"), &mut files);
    let defined = declarations(header);
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for after in text.split("#[repr(C)]").skip(1) {
            let name = after.split("pub struct ").nth(1).and_then(|s| s.split([' ', '{', '(']).next()).unwrap_or("");
            if name.starts_with("gdrfab_") {
                assert!(defined.contains(&format!("typedef struct {name} {{")), "struct {name} has lost its fields on the way");
            }
        }
    }
}
