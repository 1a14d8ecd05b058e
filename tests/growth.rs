// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What allocates as many elements as a number says goes through src/room.rs, where it can fail, or stands here with what bounds
//! the number. The reserve (src/reserve.rs) has what is bounded.
//!
//! The sources are read as text: a line of a file is known by what it allocates, not by its number.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Words that allocate as much as they are told.
const WORDS: [&str; 8] =
    ["Vec::with_capacity(", "String::with_capacity(", "vec![", ".to_vec()", ".resize(", ".resize_with(", ".reserve_exact(", "new_uninit_slice("];

/// Files, how many such places each has, and what bounds them.
const BOUNDED: &[(&str, usize, &str)] = &include!("growth/bounded.in");

/// `vec![a, b]` has as many elements as are written there, and so have numbers in digits.
fn allocates(line: &str) -> bool {
    WORDS.iter().any(|word| match line.find(word).map(|at| &line[at + word.len()..]) {
        Some(rest) if *word == "vec![" => rest.split(']').next().is_some_and(|inside| inside.contains("; ")),
        Some(rest) => !rest.split(')').next().is_some_and(|n| !n.is_empty() && n.chars().all(|c| c.is_ascii_digit())),
        None => false,
    })
}

/// Lines of a file that allocate, without those of its tests and comments.
fn places(source: &str) -> Vec<&str> {
    let own = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    own.lines().map(str::trim).filter(|line| !line.starts_with("//") && allocates(line)).collect()
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

/// The programs may end; tests do.
fn is_of_the_library(name: &str) -> bool {
    !name.starts_with("bin/") && name != "room.rs" && !name.ends_with("/tests.rs") && !name.contains("/tests/")
}

#[test]
fn growth_by_a_number_can_fail_or_is_bounded() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut bounded: BTreeMap<&str, (usize, &str)> = BOUNDED.iter().map(|(file, n, why)| (*file, (*n, *why))).collect();
    assert_eq!(bounded.len(), BOUNDED.len(), "a file is listed twice");
    let mut wrong = Vec::new();
    for file in files {
        let name = file.strip_prefix(&src).unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).unwrap();
        let found = if is_of_the_library(&name) { places(&text) } else { Vec::new() };
        let (known, why) = bounded.remove(name.as_str()).unwrap_or((0, "use src/room.rs, or say what bounds it"));
        if found.len() != known {
            wrong.push(format!("{name}: {} places, {known} are known ({why}):\n  {}", found.len(), found.join("\n  ")));
        }
    }
    wrong.extend(bounded.keys().map(|file| format!("{file}: there is no such file")));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The check above is worth what it would catch.
#[test]
fn growth_is_seen() {
    for line in ["let b = vec![0u8; len];", "Vec::with_capacity(n)", "let d = data.to_vec();", "all.resize(n, 0)", "all.resize_with(n, || None)"] {
        assert_eq!(places(line).len(), 1, "{line}");
    }
    for line in ["// vec![0; n]", "let b = vec![a, b];", "Vec::with_capacity(64)", "room::filled(0, n)?", "#[cfg(test)]\nmod tests {\nvec![0; n]"] {
        assert!(places(line).is_empty(), "{line}");
    }
}
