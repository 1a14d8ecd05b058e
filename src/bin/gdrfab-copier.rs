// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process that copies device memory for another process, which starts it (`src/hmem/copier`). Standard input is the
//! socket between both. Standard output is the lifeline: this process dies when the other end is closed, and so ends with the
//! process that started it.

use gdrfab::hmem::copier;
use gdrfab::sys::process;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::ExitCode;

/// Drops the inherited descriptors, CPU binding and working directory.
fn settle() {
    process::close_descriptors();
    // SAFETY: the calls change only this process, and `all` has the size that is passed.
    unsafe {
        // The starting process may be bound to one CPU, which it does not want to share with this one.
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        (0..libc::CPU_SETSIZE as usize).for_each(|cpu| libc::CPU_SET(cpu, &mut all));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &all);
    }
    // Leaves the working directory, so that its file system can be unmounted.
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
    // The starting process waits for its child, and must not have a child that it does not know of: the copier is a
    // grandchild.
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } != 0 {
        return ExitCode::SUCCESS;
    }
    settle();
    let (socket, lifeline) = (std::io::stdin().as_fd().try_clone_to_owned(), std::io::stdout().as_fd().try_clone_to_owned());
    let (Ok(socket), Ok(lifeline)) = (socket, lifeline) else { return ExitCode::FAILURE };
    // Replaces standard input and output, so that `socket` and `lifeline` are the last descriptors of the connections, whose
    // ends must be noticed, and so that a driver's output goes nowhere.
    let Ok(null) = File::options().read(true).write(true).open("/dev/null") else { return ExitCode::FAILURE };
    // SAFETY: this program does not use standard input and output after this.
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
