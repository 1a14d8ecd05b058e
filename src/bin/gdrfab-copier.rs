// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process that copies device memory for another process, which starts it (`src/hmem/copier`). Standard input is the socket between the
//! two. Standard output is a second connection, which ends this process when it is closed. So it ends with the process that started it.

use gdrfab::hmem::copier;
use gdrfab::sys::process;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::ExitCode;

/// Drops everything that was inherited and is not meant for this process.
fn settle() {
    process::close_descriptors();
    // SAFETY: these system calls concern only this process and its own threads, and `all` has the size that is passed.
    unsafe {
        // If the starter is bound to one CPU, the two should not have to share it.
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        (0..libc::CPU_SETSIZE as usize).for_each(|cpu| libc::CPU_SET(cpu, &mut all));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &all);
    }
    // The inherited directory may be on a file system that is to be unmounted.
    let _ = std::env::set_current_dir("/");
}

fn main() -> ExitCode {
    let is_socket = rustix::net::sockopt::socket_type(std::io::stdin()).is_ok();
    if !is_socket || std::env::args_os().len() > 1 {
        println!(
            "gdrfab-copier {}: libgdrfab starts this program where endpoints may not call a device driver (GDRFAB_OPT_DRIVER_CALLS)",
            env!("CARGO_PKG_VERSION")
        );
        return ExitCode::from(2);
    }
    // The starter waits for its direct child, and must not be left with a child that it does not know of. SAFETY: this process has one
    // thread.
    if unsafe { libc::fork() } != 0 {
        return ExitCode::SUCCESS;
    }
    settle();
    let (socket, lifeline) = (std::io::stdin().as_fd().try_clone_to_owned(), std::io::stdout().as_fd().try_clone_to_owned());
    let (Ok(socket), Ok(lifeline)) = (socket, lifeline) else { return ExitCode::FAILURE };
    // The other side notices the end of a connection only if nothing else holds it open, so these must be its last descriptors. Output of
    // drivers is discarded.
    let Ok(null) = File::options().read(true).write(true).open("/dev/null") else { return ExitCode::FAILURE };
    // SAFETY: nothing in this process uses standard input and output for anything else.
    if unsafe { libc::dup2(null.as_raw_fd(), 0) < 0 || libc::dup2(null.as_raw_fd(), 1) < 0 } {
        return ExitCode::FAILURE;
    }
    if !process::die_with(lifeline.as_fd()) {
        return ExitCode::SUCCESS;
    }
    match copier::serve(socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("gdrfab-copier: {e}");
            ExitCode::FAILURE
        }
    }
}
