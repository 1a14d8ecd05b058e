// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs tests against the fake drivers of `c-tests/fakes`. GDRFAB_FAKES names the directory that `c-tests/fakes/build.sh` filled. Each case
//! runs in a process of its own, because libraries are found by the LD_LIBRARY_PATH of the process's start, and an interface is opened only
//! once.

#![allow(dead_code, reason = "each test is a crate of its own and uses a part of this")]

use gdrfab::error::{Error, Result};
use gdrfab::hmem::{self, Dir, Iface, Interface};
use std::path::Path;
use std::process::Command;

/// (name, directories below GDRFAB_FAKES, environment, body)
pub type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)], fn());

/// Runs every case, each in a process that `again` starts; such a process runs the case that CASE names. `parts` are bodies of processes
/// that a case starts.
pub fn each(cases: &[Case], parts: &[(&str, fn())]) {
    let Some(fakes) = std::env::var_os("GDRFAB_FAKES") else {
        println!("skipped: GDRFAB_FAKES does not name a directory of fake drivers");
        return;
    };
    if let Ok(name) = std::env::var("CASE") {
        let mut all = cases.iter().map(|case| (case.0, case.3)).chain(parts.iter().copied());
        return all.find(|one| one.0 == name).unwrap().1();
    }
    for (name, dirs, env, _) in cases {
        let path = std::env::join_paths(dirs.split(':').map(|dir| Path::new(&fakes).join(dir))).unwrap();
        let mut command = again(name);
        command.env("LD_LIBRARY_PATH", path).envs(env.iter().copied());
        assert!(command.status().unwrap().success(), "{name}");
    }
}

/// This program once more. It has one test only, so none is named: with a wrong name nothing would run, and the test would pass.
pub fn again(case: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("--nocapture").env("CASE", case);
    command
}

#[track_caller]
pub fn fails<T>(result: Result<T>, errno: i32, words: &str) {
    let e = result.err().unwrap();
    assert!(e.errno == errno && e.words.contains(words), "{e}");
}

/// Checks that the interface does not open.
#[track_caller]
pub fn refused(iface: Iface, errno: i32, words: &str) {
    fails(hmem::get(iface), errno, words);
}

pub fn fault(list: &str) {
    // SAFETY: no other thread of this process reads the environment.
    unsafe { std::env::set_var("FAKE_FAULT", list) }
}

/// Checks that the call fails with the fault, with an error text that names the function, and succeeds without.
#[track_caller]
pub fn refuse(list: &str, errno: i32, call: &dyn Fn() -> Result<()>) {
    fault(list);
    let result = call();
    fault("");
    fails(result, errno, list.split('=').next().unwrap());
    call().unwrap();
}

pub fn fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

pub fn store(up: &dyn Interface, device: u32, to: u64, bytes: &[u8]) -> Result<()> {
    // SAFETY: the bytes are readable.
    unsafe { up.copy(device, Dir::ToDevice, to, bytes.as_ptr() as u64, bytes.len()) }
}

pub fn load(up: &dyn Interface, device: u32, from: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    // SAFETY: the bytes are writable.
    unsafe { up.copy(device, Dir::FromDevice, bytes.as_mut_ptr() as u64, from, len) }.map(|()| bytes)
}

/// Bytes that are all different from their neighbours.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub fn unhex<const N: usize>(text: &str) -> [u8; N] {
    assert_eq!(text.len(), 2 * N);
    std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
}

/// The error of a stream of four copies whose second one the fake breaks; the stream stays broken.
pub fn broken_stream(up: &'static dyn Interface) -> Error {
    let a = up.alloc(0, 4096).unwrap();
    let mut stream = up.stream(0).unwrap();
    for i in 0..4 {
        // SAFETY: device memory.
        unsafe { stream.post(Dir::Within, a + 8 * i, a + 8 * i + 100, 8) }.unwrap();
    }
    let e = loop {
        match stream.done() {
            Ok(n) => assert!(n < 2),
            Err(e) => break e,
        }
    };
    assert!(e.words.contains("copy 2 of 4"), "{e}");
    // SAFETY: the stream has failed, so nothing is started.
    assert!(stream.done().is_err() && unsafe { stream.post(Dir::Within, a, a + 8, 8) }.is_err());
    e
}
