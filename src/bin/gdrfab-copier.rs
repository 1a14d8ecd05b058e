// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process that copies device memory for another one, which starts it (`src/hmem/copier`): its standard input is their
//! socket, and its standard output the one whose closing kills it. It ends with that process.

use gdrfab::hmem::copier;
use gdrfab::sys::process;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::ExitCode;

/// Leaves everything behind that was inherited and is not meant for this process.
fn settle() {
    process::close_descriptors();
    // SAFETY: system calls on this process's own threads, and `all` is as large as is said.
    unsafe {
        // Whoever is bound to one CPU does not want to share it with this one.
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        (0..libc::CPU_SETSIZE as usize).for_each(|cpu| libc::CPU_SET(cpu, &mut all));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &all);
    }
    // A directory that somebody may want to unmount is not kept.
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
    // The starter waits for its child, and must not have one that it does not know.
    // SAFETY: there is one thread.
    if unsafe { libc::fork() } != 0 {
        return ExitCode::SUCCESS;
    }
    settle();
    let (socket, lifeline) = (std::io::stdin().as_fd().try_clone_to_owned(), std::io::stdout().as_fd().try_clone_to_owned());
    let (Ok(socket), Ok(lifeline)) = (socket, lifeline) else { return ExitCode::FAILURE };
    // The ends of the connections must be seen, so these are the last descriptors of them; and what a driver prints goes nowhere.
    let Ok(null) = File::options().read(true).write(true).open("/dev/null") else { return ExitCode::FAILURE };
    // SAFETY: nobody uses standard input and output as what they were.
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
