// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls that one file makes for all others, because a promise of the library hangs on how they are made.

use super::rust::words;
use super::{closing, sources};
use std::fs;
use std::path::Path;

const THREADS: &str = "its thread would take the program's signals: sys::thread starts threads";

const DESCRIPTORS: &str = "a descriptor may be 0, 1 or 2: sys makes descriptors, by sys::fd::own";

/// Words, the files of src/ that may have them, and why no other may.
const ONE_PLACE: &[(&[&str], &[&str], &str)] = &[
    (&["use", "std", "::", "thread"], &[], THREADS),
    (&["std", "::", "thread", "::", "spawn"], &[], THREADS),
    (&["std", "::", "thread", "::", "Builder"], &[], THREADS),
    (&["pthread_create"], &["sys/thread.rs"], THREADS),
    (&["socket_with", "("], &["sys/socket.rs", "sys/tcp.rs"], DESCRIPTORS),
    (&["socketpair", "("], &["sys/socket.rs"], DESCRIPTORS),
    (&["accept_with", "("], &["sys/socket.rs"], DESCRIPTORS),
    (&["acceptfrom_with", "("], &["sys/tcp.rs"], DESCRIPTORS),
    (&["eventfd", "("], &["sys/epoll.rs"], DESCRIPTORS),
    (&["epoll", "::", "create", "("], &["sys/epoll.rs"], DESCRIPTORS),
    (&["timerfd_create", "("], &["sys/epoll.rs"], DESCRIPTORS),
    (&["memfd_create", "("], &["sys/mem.rs"], DESCRIPTORS),
    (&["pidfd_open", "("], &["sys/process.rs"], DESCRIPTORS),
    (&["pidfd_getfd", "("], &["sys/process.rs"], DESCRIPTORS),
    (&["rustix", "::", "fs", "::", "open", "("], &[], DESCRIPTORS),
    (&["rustix", "::", "fs", "::", "openat", "("], &["sys/path_socket.rs"], DESCRIPTORS),
];

/// Files of `ONE_PLACE` that make descriptors: each call there is followed by `fd::own` before anything else is done.
const MAKERS: [&str; 5] = ["sys/socket.rs", "sys/tcp.rs", "sys/epoll.rs", "sys/mem.rs", "sys/process.rs"];

/// Calls that make a descriptor, and how many of them `fd::own` follows, in one file.
fn made_and_owned(source: &str) -> (usize, usize) {
    let tokens = without_tests(&words(source));
    let count = |words: &[&str]| tokens.windows(words.len()).filter(|w| *w == words).count();
    let calls = ONE_PLACE.iter().filter(|(_, _, why)| *why == DESCRIPTORS).map(|(words, ..)| count(words)).sum();
    (calls, count(&["fd", "::", "own"]))
}

#[test]
fn descriptors_are_made_above_the_standard_ones() {
    for file in MAKERS {
        let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file)).unwrap();
        let (made, owned) = made_and_owned(&source);
        assert!(made > 0 && owned >= made, "{file}: {made} calls make descriptors, {owned} are followed by fd::own");
    }
}

/// The tokens without those of items that only tests have.
fn without_tests(tokens: &[String]) -> Vec<String> {
    let mut out = Vec::with_capacity(tokens.len());
    let mut i = 0;
    while i < tokens.len() {
        if tokens[i..].starts_with(&["#", "[", "cfg", "(", "test", ")", "]"].map(String::from)) {
            let end = (i..tokens.len()).find(|&k| matches!(tokens[k].as_str(), "{" | ";")).unwrap_or(tokens.len() - 1);
            i = if tokens[end] == "{" { closing(tokens, end) } else { end };
        } else {
            out.push(tokens[i].clone());
        }
        i += 1;
    }
    out
}

fn misplaced(file: &str, source: &str) -> Vec<String> {
    let tokens = without_tests(&words(source));
    let has = |words: &[&str]| tokens.windows(words.len()).any(|w| w == words);
    let wrong = ONE_PLACE.iter().filter(|(words, places, _)| !places.contains(&file) && has(words));
    wrong.map(|(words, _, why)| format!("{file}: {}: {why}", words.concat())).collect()
}

/// Programs and tests make such calls as they like.
fn is_of_the_library(file: &str) -> bool {
    !file.starts_with("bin/") && !file.split('/').any(|part| part == "tests" || part == "tests.rs")
}

#[test]
fn calls_are_made_in_one_place() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut wrong = Vec::new();
    for file in &files {
        let name = file.strip_prefix(&src).unwrap().to_string_lossy().into_owned();
        if is_of_the_library(&name) {
            wrong.extend(misplaced(&name, &fs::read_to_string(file).unwrap()));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The check above is worth what it would catch.
#[test]
fn misplaced_calls_are_seen() {
    for source in [
        "fn f() { std::thread::spawn(|| ()); }",
        "use std::thread;",
        "#[cfg(test)] mod tests { fn f() {} } fn g() { libc::pthread_create(); }",
    ] {
        assert_eq!(misplaced("prov/x.rs", source).len(), 1, "{source}");
    }
    for source in [
        "fn f() { thread::spawn(\"x\", || ()); }",
        "#[cfg(test)] mod tests { fn f() { std::thread::spawn(|| ()); } }",
        "fn f() { std::thread::sleep(x) }",
    ] {
        assert_eq!(misplaced("prov/x.rs", source), Vec::<String>::new(), "{source}");
    }
}
