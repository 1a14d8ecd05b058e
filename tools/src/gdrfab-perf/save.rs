// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes files of results. A file is either complete or not there, however the run ends.

use gdrfab::error::{Error, Result};
use rustix::fs::Access;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

fn failed(option: &str, path: &str, e: io::Error) -> Error {
    Error::new(e.raw_os_error().unwrap_or(gdrfab::error::errno::EIO), format!("{option} {path}: {e}"))
}

/// Checks that a file can be written there, as far as possible without writing: better now than after a long run.
pub fn check(option: &str, path: &str) -> Result<()> {
    let place = Path::new(path);
    if place.is_dir() {
        return Err(failed(option, path, io::Error::from_raw_os_error(gdrfab::error::errno::EISDIR)));
    }
    rustix::fs::access(directory(place), Access::WRITE_OK | Access::EXEC_OK).map_err(|e| failed(option, path, e.into()))
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a file completely or not at all: first beside its place, since only a rename within one directory is one step.
pub fn whole(option: &str, path: &str, text: &str) -> Result<()> {
    let place = Path::new(path);
    let beside = directory(place).join(format!(".gdrfab-perf.{}", std::process::id()));
    let mut file = File::create_new(&beside).map_err(|e| failed(option, path, e))?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&beside, place));
    written.map_err(|e| {
        // A partial file is of no use. If it cannot be removed either, the first failure is the one to report.
        let _ = fs::remove_file(&beside);
        failed(option, path, e)
    })
}
