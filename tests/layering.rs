// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arrows between the layers of src/ point one way; docs/architecture.md draws them. At the top, exported functions hold
//! their panics.
//!
//! The sources are parsed, not compiled, so that an import counts wherever it is written: in a `use`, in a
//! path inside an expression, through `super`, under a `cfg` that this build leaves out.

use rust::words;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

#[path = "layering/c.rs"]
mod c;
#[path = "layering/circles.rs"]
mod circles;
#[path = "layering/objects.rs"]
mod objects;
#[path = "layering/places.rs"]
mod places;
#[path = "layering/rust.rs"]
mod rust;

/// Bottom up: a layer may import itself and what stands before it.
const LAYERS: [&str; 16] = [
    "error",
    "reserve",
    "fallible",
    "environment",
    "signals",
    "log",
    "guard",
    "config",
    "sys",
    "sync",
    "hmem",
    "mr",
    "prov",
    "rdm",
    "fabric",
    "capi",
];

/// Modules of one directory that must not know each other.
const PEERS: [(&str, &[&str]); 2] =
    [("hmem", &["system", "cuda", "rocr", "ze", "neuron", "synapseai"]), ("prov", &["shm", "tcp", "verbs"])];

/// What the C border leaves to those below it: locks, and descriptors as a NIC knows them.
const NOT_AT_THE_BORDER: [&str; 7] = ["Mutex", "RwLock", "OnceLock", "parking_lot", "Serial", "DEVICE_DESC", "lkey"];

const UNTRUSTED: &str = "a set-uid program trusts no variable: crate::environment reads them";

/// Words that belong to certain places: (tokens, where they may stand, why).
const RESERVED: [(&[&str], &[&str], &str); 13] = [
    (&["no_mangle"], &["capi"], "only the C border exports symbols"),
    (&["export_name"], &["capi"], "only the C border exports symbols"),
    (&["process", "::", "exit"], &["bin"], "a library does not end its caller"),
    (&["process", "::", "abort"], &["bin"], "a library does not end its caller"),
    (&["env", "::", "var"], &["bin"], UNTRUSTED),
    (&["env", "::", "var_os"], &["environment", "bin"], UNTRUSTED),
    (&["env", "::", "vars"], &["bin"], UNTRUSTED),
    (&["env", "::", "vars_os"], &["environment", "bin"], UNTRUSTED),
    (&["getenv"], &["bin"], UNTRUSTED),
    (&["println", "!"], &["bin"], "nothing is printed unless asked"),
    (&["eprintln", "!"], &["bin"], "nothing is printed unless asked, and a failed write is a panic"),
    (&["eprint", "!"], &["bin"], "nothing is printed unless asked, and a failed write is a panic"),
    (&["dbg", "!"], &[], "nothing is printed unless asked"),
];

/// Every path from the crate's root that a module mentions.
fn mentions(module: &[String], file: &rust::File) -> Vec<Vec<String>> {
    let from_root = |path: &Vec<String>| match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "super" => {
            let supers = path.iter().take_while(|word| *word == "super").count();
            Some([&module[..module.len().saturating_sub(supers)], &path[supers..]].concat())
        }
        _ => None,
    };
    file.imports.iter().map(|import| &import.path).chain(&file.paths).filter_map(from_root).collect()
}

/// `prov/shm/ring.rs` is prov::shm::ring, `prov/mod.rs` is prov.
fn module_of(file: &Path) -> Vec<String> {
    let mut parts: Vec<String> = file.with_extension("").iter().map(|p| p.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

/// Checks one file of src/; returns the arrows it draws to other layers, and what is wrong.
fn check(file: &Path, source: &str) -> (usize, Vec<String>) {
    let name = file.display();
    let module = module_of(file);
    let layer = module[0].as_str();
    let tokens = words(source);
    let mut wrong = Vec::new();
    for (words, places, why) in RESERVED {
        if tokens.windows(words.len()).any(|w| w == words) && !places.contains(&layer) {
            wrong.push(format!("{name}: {}: {why}", words.concat()));
        }
    }
    // The root only lists the modules, and the programs stand above everything.
    if matches!(layer, "lib" | "bin") {
        return (0, wrong);
    }
    let Some(rank) = LAYERS.iter().position(|l| *l == layer) else {
        wrong.push(format!("{name}: {layer} has no place in the order of layers"));
        return (0, wrong);
    };
    if layer == "capi" {
        wrong.extend(
            tokens.iter().filter(|t| NOT_AT_THE_BORDER.contains(&t.as_str())).map(|t| format!("{name}: {t}: a provider's business")),
        );
    }
    let mut arrows = 0;
    for path in mentions(&module, &rust::read(source, true)) {
        let Some(target) = path.first().and_then(|first| LAYERS.iter().position(|l| l == first)) else { continue };
        arrows += usize::from(target != rank);
        if rank > LAYERS.iter().position(|l| *l == "prov").unwrap()
            && PEERS[1].1.iter().any(|p| path.len() > 1 && path[0] == "prov" && path[1] == *p)
        {
            wrong.push(format!("{name}: {layer} names no provider: {}", path.join("::")));
        }
        if target > rank {
            wrong.push(format!("{name}: {layer} must not know {}", path.join("::")));
        }
        for (directory, peers) in PEERS {
            let peer_of = |m: &[String]| match m {
                [d, p, ..] if d == directory => peers.iter().position(|x| x == p),
                _ => None,
            };
            if let (Some(this), Some(other)) = (peer_of(&module), peer_of(&path))
                && this != other
            {
                wrong.push(format!("{name}: {} must not know {}", module.join("::"), path.join("::")));
            }
        }
    }
    (arrows, wrong)
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

#[test]
fn arrows_point_one_way() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut arrows = 0;
    let mut wrong = Vec::new();
    for file in &files {
        let (n, mut w) = check(file.strip_prefix(&src).unwrap(), &fs::read_to_string(file).unwrap());
        arrows += n;
        wrong.append(&mut w);
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(arrows >= LAYERS.len(), "only {arrows} imports found in {} files: does the scanner still read them?", files.len());
}

/// The check above is worth what it would catch.
#[test]
fn violations_are_seen() {
    for (file, source) in [
        ("sys/mem.rs", "use crate::prov::Op;"),
        ("error.rs", "use crate::log;"),
        ("sys/mod.rs", "use crate::{error::Error, fabric};"),
        ("mr/mod.rs", "fn f() -> u32 { crate::capi::types::f() }"),
        ("hmem/system.rs", "use super::super::prov::flags;"),
        ("hmem/system.rs", "mod tests { use super::super::super::fabric::cq; }"),
        ("fabric/cq.rs", "#[cfg(feature = \"x\")] use crate::error::Error; use crate :: capi :: mem;"),
        ("prov/shm/mod.rs", "use crate::prov::tcp::wire;"),
        ("prov/shm/mr.rs", "use super::super::{op::Op, verbs};"),
        ("prov/verbs/mod.rs", "use super::shm;"),
        ("hmem/cuda.rs", "use super::{dmabuf, rocr::Device};"),
        ("sync/ring.rs", "#[unsafe(no_mangle)] pub extern \"C\" fn gdrfab_x() {}"),
        ("fabric/mod.rs", "fn f() { std::process::abort() }"),
        ("config.rs", "fn f() { std::env::var_os(\"GDRFAB_LOG\"); }"),
        ("log.rs", "fn f() { eprintln!(\"x\"); }"),
        ("prov/shm/mod.rs", "fn f() { let c = '\"'; println!(\"{c}\"); }"),
        ("util.rs", "//! a new file that nobody has placed"),
        ("capi/rma.rs", "use crate::prov::verbs::Endpoint;"),
        ("rdm/mod.rs", "fn f() { crate::prov::tcp::open() }"),
        ("capi/cq.rs", "fn f(q: &Mutex<u8>) {}"),
    ] {
        assert_eq!(check(Path::new(file), source).1.len(), 1, "{file}: {source}");
    }
    for (file, source) in [
        ("prov/shm/mod.rs", "use crate::{error, sys::mem, prov::{op, shm::ring}}; use super::super::mr::Key;"),
        ("prov/mod.rs", "use crate::prov::{shm, tcp}; pub mod verbs;"),
        ("hmem/mod.rs", "use crate::hmem::{cuda, rocr};"),
        ("error.rs", "// crate::prov\n/* crate::capi /* nested */ crate::capi */ const S: &str = \"crate::fabric \\\" crate::capi\";"),
        ("error.rs", "const R: &str = r#\"crate::capi \" no_mangle\"#; const B: &[u8] = b\"crate::mr\"; const Q: char = '\\'';"),
        ("error.rs", "impl<'a> From<&'a str> for Error { fn from(_: &'a str) -> Self { Self::<u8>::new() } }"),
        ("log.rs", "mod tests { use super::*; use super::super::error; }"),
        ("capi/mod.rs", "#[unsafe(no_mangle)] extern \"C\" fn gdrfab_x() { crate::fabric::x::<u8>() }"),
        ("bin/gdrfab-info.rs", "fn main() { println!(\"x\"); std::process::exit(1) }"),
        ("lib.rs", "pub mod capi; mod prov;"),
    ] {
        assert_eq!(check(Path::new(file), source).1, Vec::<String>::new(), "{file}: {source}");
    }
}

/// What runs a closure and holds its panics (src/guard.rs, src/capi/boundary.rs), and what else an exported function or the
/// entry of a table of operations may call outside of them, as it cannot panic. (Of the queues' read_ready with put, may_arrive and sole,
/// the instructions prove it, in `make check-guards`.)
const GUARDS: [&str; 10] = ["hold", "control", "release", "counted", "reading", "waiting", "posting", "attempt", "last_words", "no_cq"];
const HARMLESS: &[&str] = &[
    "is_null",
    "add",
    "write_unaligned",
    "max",
    "cast",
    "cast_mut",
    "as_ptr",
    "default",
    "null_mut",
    "ep_ops",
    "cq_head",
    "ops",
    "of",
    "is_here",
    "tx_op_flags",
    "on_host",
    "is_aligned",
    "null",
    "new",
    "contains",
    "saturating_abs",
    "concat!",
    "env!",
    "thread_local!",
    "read_ready",
    "put",
    "may_arrive",
    "sole",
    "spin_loop",
];

/// Where the bracket at `from` is closed.
fn closing(tokens: &[String], from: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(from) {
        match token.as_str() {
            "(" | "{" | "[" => depth += 1,
            ")" | "}" | "]" => depth -= 1,
            _ => (),
        }
        if depth == 0 {
            return i;
        }
    }
    tokens.len()
}

/// Not a keyword, nor punctuation.
fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_lowercase() || c == '_')
        && !["if", "let", "match", "while", "in", "return", "unsafe", "else"].contains(&token)
}

/// Functions by name, with what their bodies call outside of a guard.
fn unguarded_calls(tokens: &[String]) -> BTreeMap<String, Vec<String>> {
    let token = |i: usize| tokens.get(i).map_or("", String::as_str);
    let mut found = BTreeMap::new();
    for at in (0..tokens.len()).filter(|&i| token(i) == "fn" && token(i + 1) != "(") {
        let Some(open) = (at..tokens.len()).find(|&i| token(i) == "{") else { continue };
        let end = closing(tokens, open);
        let mut calls = Vec::new();
        let mut i = open + 1;
        while i < end {
            if token(i) == "=" && token(i + 1) == "|" {
                // A closure that is bound does nothing yet.
                while i < end && token(i) != ";" {
                    i = if matches!(token(i), "(" | "{" | "[") { closing(tokens, i) } else { i } + 1;
                }
            } else if token(i + 1) == "(" && GUARDS.contains(&token(i)) {
                i = closing(tokens, i + 1);
            } else if is_name(token(i)) && token(i + 1) == "!" && matches!(token(i + 2), "(" | "{" | "[") {
                calls.push(format!("{}!", token(i)));
            } else if is_name(token(i)) && token(i + 1) == "(" {
                calls.push(token(i).to_string());
            }
            i += 1;
        }
        // One in a macro is as many as there are uses of it, each with its name first.
        let made_by = (token(at + 1) == "$").then(|| (0..at).rev().find(|&i| token(i) == "macro_rules").map_or("", |i| token(i + 2)));
        let uses = |by| (0..tokens.len()).filter(move |&i| token(i) == by && token(i + 1) == "!" && token(i + 2) == "(");
        match made_by {
            Some(by) => found.extend(uses(by).map(|i| (token(i + 3).to_string(), calls.clone()))),
            None => _ = found.insert(token(at + 1).to_string(), calls),
        }
    }
    found
}

/// Functions that C code, or a jump of an exported function, may enter: `extern "C"`.
fn entries(tokens: &[String]) -> Vec<String> {
    tokens.windows(3).filter(|w| w[0] == "extern" && w[1] == "fn" && w[2] != "(").map(|w| w[2].clone()).collect()
}

/// What the functions in `roots` call outside of a guard, themselves or by way of others of `functions`. What another file's
/// entry does, that entry answers for.
fn unguarded(functions: &BTreeMap<String, Vec<String>>, roots: &[String], entries: &BTreeSet<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for name in roots {
        let (mut seen, mut next) = (vec![name.as_str()], vec![name.as_str()]);
        while let Some(at) = next.pop() {
            for call in functions[at].iter().filter(|c| !HARMLESS.contains(&c.as_str())) {
                match functions.get_key_value(call) {
                    Some((inner, _)) if !seen.contains(&inner.as_str()) => (seen.push(inner), next.push(inner)).0,
                    Some(_) => (),
                    None if entries.contains(call) => (),
                    None => wrong.push(format!("{name}: {call} in {at} is outside of a guard: a panic of it ends the process")),
                }
            }
        }
    }
    wrong
}

/// docs/abi.md: a panic ends no process. The `unwinding` guard of `make check-guards` reads the same from the instructions.
/// A table's entries are `extern "C"`, wherever they stand, and so are held to the same.
#[test]
fn exported_functions_and_entries_do_all_they_do_inside_a_guard() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let read = |dir: &str| {
        let mut files = Vec::new();
        sources(&src.join(dir), &mut files);
        files.into_iter().filter(|f| !f.ends_with("boundary.rs")).map(|f| words(&fs::read_to_string(f).unwrap())).collect::<Vec<_>>()
    };
    let (capi, below) = (read("capi"), [read("prov"), read("rdm"), read("fabric")].concat());
    let all: BTreeSet<String> = below.iter().flat_map(|t| entries(t)).collect();
    assert!(all.len() > 20, "only {} entries of tables: does the scanner still read them?", all.len());
    let mut functions = BTreeMap::new();
    capi.iter().for_each(|t| functions.append(&mut unguarded_calls(t)));
    let exported: Vec<String> = functions.keys().filter(|name| name.starts_with("gdrfab_")).cloned().collect();
    assert!(exported.len() > 100, "only {} functions: does the scanner still read them?", exported.len());
    let mut wrong = unguarded(&functions, &exported, &all);
    for file in &below {
        wrong.append(&mut unguarded(&unguarded_calls(file), &entries(file), &all));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The check above is worth what it would catch.
#[test]
fn unguarded_entries_are_seen() {
    let check = |source: &str| {
        let tokens = words(source);
        unguarded(&unguarded_calls(&tokens), &entries(&tokens), &["write".to_string()].into()).len()
    };
    assert_eq!(check("unsafe extern \"C\" fn f() -> isize { let c = || g(); attempt(c); unsafe { write(1) } }"), 0);
    assert_eq!(check("unsafe extern \"C\" fn f() -> isize { post() }"), 1);
    assert_eq!(check("unsafe extern \"C\" fn f<const A: bool>() -> isize { g() } fn g() -> isize { hold(|| 1); h() }"), 1);
    assert_eq!(check("type F = unsafe extern \"C\" fn(i32); fn f() { g() }"), 0);
}
