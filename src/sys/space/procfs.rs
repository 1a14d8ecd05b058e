// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads /proc about another process: its page map, threads and mappings.

use super::call::Attach;
use crate::error::{Error, Result, errno};
use crate::sys::{fd, process};
use std::io::Read;
use std::os::fd::OwnedFd;

/// True if the mounted /proc belongs to this pid namespace.
fn is_our_proc() -> bool {
    std::fs::read_link("/proc/self").is_ok_and(|own| own.to_str().and_then(|n| n.parse().ok()) == Some(process::pid()))
}

pub fn page_map(tid: i32) -> Result<OwnedFd> {
    if !is_our_proc() {
        return Err(Error::fixed(errno::ENOENT, "/proc is not mounted for this process's pid namespace"));
    }
    let map = std::fs::File::open(format!("/proc/{tid}/pagemap"))
        .map_err(|e| Error::new(e.raw_os_error().unwrap_or(errno::EIO), format!("opening the peer's page map: {e}")))?;
    fd::own(map.into()).map_err(|e| Error::os("duplicating the descriptor of the peer's page map", e))
}

/// The threads of a process, without the first.
pub fn threads(pid: i32) -> impl Iterator<Item = i32> {
    let all = std::fs::read_dir(format!("/proc/{pid}/task")).ok().into_iter().flatten();
    all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(move |tid| *tid != pid)
}

/// Bytes read of a process's list of mappings, which that process can make arbitrarily long.
const MAPS: u64 = 1 << 20;

/// True if a mapping at `addr` permits a copy in direction `how`; false also if the mapping comes after the first
/// `MAPS` bytes of the list.
pub fn maps(tid: i32, addr: u64, how: Attach) -> bool {
    let mut text = Vec::new();
    let read = std::fs::File::open(format!("/proc/{tid}/maps")).and_then(|list| list.take(MAPS).read_to_end(&mut text));
    if read.is_err() {
        return false;
    }
    let holds = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (low, high) = range.split_once('-')?;
        let number = |hex| u64::from_str_radix(hex, 16).ok();
        let right = rest.as_bytes().get(usize::from(how == Attach::Write))?;
        Some((number(low)?..number(high)?).contains(&addr) && *right != b'-')
    };
    String::from_utf8_lossy(&text).lines().any(|line| holds(line) == Some(true))
}
